// Attention of new tokens over cached keys and values, in bfloat16 or float32.

namespace {

#ifndef HAS_TILES

// Products by vectors, where there are no tiles; weights stay in float32.
struct Products {
  using Weight = float;
  static constexpr int CHUNK = 48;  // queries, about, for which keys are transposed once

  const Attention& attention;

  void score(const Task& task, Scratch& scratch, float* scores, int64_t stride) const {
    const int64_t num_words = attention.dim * sizeof(Element) / 4, count = scratch.queries.size();
    const int64_t row_words = words_in(attention.dim);
    uint32_t* rows = words_of<uint32_t>(scratch.rows, count * row_words);
    in_tiles<ROWS>(count, [&]<int COUNT>(int64_t first) {
      for (int row = 0; row < COUNT; ++row)
        interleave(
            scratch.queries[first + row].from, attention.dim, COUNT,
            rows + first * row_words + row);
    });
    uint32_t* block = words_of<uint32_t>(scratch.keys, num_words * BLOCK);
    const Element* keys = attention.keys_of(task);
    const int64_t step = attention.key_strides.token;
    for (int64_t key = task.keys.begin; key < task.keys.end; key += BLOCK) {
      for (int64_t ahead = key + BLOCK; ahead < std::min(key + 2 * BLOCK, task.keys.end); ++ahead)
        prefetch(keys + ahead * step, attention.dim);
      transpose(keys + key * step, step, task.keys.end - key, attention.dim, block);
      in_tiles<ROWS>(count, [&]<int COUNT>(int64_t first) {
        Floats products[COUNT][VECTORS];
        multiply(rows + first * row_words, block, num_words, products);
        for (int row = 0; row < COUNT; ++row)
          std::memcpy(
              scores + (first + row) * stride + key, products[row], sizeof(products[row]));
      });
    }
  }

  void sum_values(const Task& task, Scratch& scratch, float* weights, int64_t stride) const {
    constexpr int most = 4, together = 4;  // vectors of a value; queries
    const int64_t dim = attention.value_dim;
    in_tiles<together>(scratch.queries.size(), [&]<int COUNT>(int64_t number) {
      const Query* queries = scratch.queries.data() + number;
      const float* of_queries = weights + number * stride;
      int64_t first = 0;
      for (; first + most * LANES <= dim; first += most * LANES)
        sum_part<COUNT, most>(task, queries, of_queries, stride, first);
      for (; first + LANES <= dim; first += LANES)
        sum_part<COUNT, 1>(task, queries, of_queries, stride, first);
      if (first < dim) sum_part<COUNT, 0>(task, queries, of_queries, stride, first);
    });
  }

  // Elements from `first` on, as PARTS vectors, of the sums of COUNT queries; if PARTS is 0, what is
  // left of a vector. A value that some query does not see must not count there, even as 0 * NaN.
  template <int COUNT, int PARTS>
  void sum_part(
      const Task& task, const Query* queries, const float* weights, int64_t stride,
      int64_t first) const {
    constexpr int parts = std::max(1, PARTS);
    const size_t size = PARTS ? sizeof(Elements) : (attention.value_dim - first) * sizeof(Element);
    const Element* values = attention.values_of(task) + first;
    Floats sums[COUNT][parts] = {};
    for (int64_t key = task.keys.begin; key < task.keys.end; ++key) {
      if (key + BLOCK < task.keys.end)
        prefetch(values + (key + BLOCK) * attention.value_strides.token, parts * LANES);
      Floats vectors[parts];
      for (int part = 0; part < parts; ++part)
        vectors[part] =
            read(values + key * attention.value_strides.token + part * LANES, size);
#pragma GCC unroll 4
      for (int query = 0; query < COUNT; ++query) {
        if (!queries[query].visible[key]) continue;
        const Floats weight = Floats{} + weights[query * stride + key];
#pragma GCC unroll 4
        for (int part = 0; part < parts; ++part)
          sums[query][part] = multiply_add(weight, vectors[part], sums[query][part]);
      }
    }
    for (int query = 0; query < COUNT; ++query)
      for (int part = 0; part < parts; ++part)
        write(
            queries[query].output + first + part * LANES,
            sums[query][part] * queries[query].factor, size);
  }
};

#endif

inline bool are_under(const int64_t* indices, int64_t count, int64_t end) {
  return std::all_of(indices, indices + count, [&](int64_t index) {
    return index >= 0 && index < end;
  });
}

bool Attention::run() const {
  if (!are_under(key_rows, num_tokens, num_rows)) return false;
  const std::vector<Task> all = tasks(Products::CHUNK);
#pragma omp parallel
  {
    static thread_local Scratch scratch;
    Products products{*this};
#pragma omp for schedule(dynamic)
    for (size_t number = 0; number < all.size(); ++number)
      run_task(all[number], scratch, products);
  }
  return true;
}

// The keys and values of a forward, and where they go in the cache.
struct Writing {
  const Element* states[2];
  Element* caches[2];
  const int64_t *rows, *positions;  // [tokens]
  int64_t num_tokens, heads, num_rows, capacity;
  struct {
    int64_t size, head, token;  // a head of a token; from one head, or token, to the next
  } layout[2];

  bool run() const {
    if (!are_under(rows, num_tokens, num_rows) || !are_under(positions, num_tokens, capacity))
      return false;
    for (int store = 0; store < 2; ++store) {
      const auto [size, next_head, next_token] = layout[store];
      for (int64_t token = 0; token < num_tokens; ++token) {
        const Element* from = states[store] + token * next_token;
        Element* to =
            caches[store] + (rows[token] * heads * capacity + positions[token]) * size;
        for (int64_t head = 0; head < heads; ++head)
          std::copy_n(from + head * next_head, size, to + head * capacity * size);
      }
    }
    return true;
  }
};

}  // namespace

KERNEL(attend, Attention)
KERNEL(write_states, Writing)
