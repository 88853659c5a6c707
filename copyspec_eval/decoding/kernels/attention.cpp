// Attention of new tokens over cached keys and values, in bfloat16 or float32.

namespace {

#ifndef HAS_TILES

// Products by vectors, where there are no tiles; weights stay in float32.
struct Products {
  using Weight = float;
  static constexpr int CHUNK = 48;  // queries, about, for which keys are transposed once
  // Vectors of a value and queries, whose sums stay in registers; keys, whose values stay in the cache.
  static constexpr int MOST_PARTS = 4, TOGETHER = LANES == 16 ? 4 : 3, RUN = 64;

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
    const int64_t whole = attention.value_dim / LANES;
    in_tiles<MOST_PARTS>(whole, [&]<int COUNT>(int64_t part) {
      sum_parts<COUNT>(task, scratch, weights, stride, part * LANES);
    });
    if (attention.value_dim % LANES)
      sum_parts<0>(task, scratch, weights, stride, whole * LANES);
  }

  // PARTS vectors of the sums, of elements from `first` on; if it is 0, what is left of a vector. Of
  // many queries, values are widened once, a run of keys at a time.
  template <int PARTS>
  void sum_parts(
      const Task& task, Scratch& scratch, const float* weights, int64_t stride, int64_t first) const {
    constexpr int parts = std::max(1, PARTS), length = parts * LANES;
    const size_t size = PARTS ? sizeof(Elements) : (attention.value_dim - first) * sizeof(Element);
    const int64_t step = attention.value_strides.token, count = scratch.queries.size();
    const Element* from = attention.values_of(task) + first;
    Floats values[RUN][parts];
    const auto widen = [&](int64_t key, Floats* to) {
      if (key + BLOCK < task.keys.end) prefetch(from + (key + BLOCK) * step, length);
      for (int part = 0; part < parts; ++part) to[part] = read(from + key * step + part * LANES, size);
      return to;
    };
    float* sums = words_of<float>(scratch.rows, count * length);
    std::memset(sums, 0, count * sizeof(values[0]));
    const auto add = [&](Range keys, const auto& at) {
      in_tiles<TOGETHER>(count, [&]<int COUNT>(int64_t number) {
        const Query* queries = scratch.queries.data() + number;
        add_values<COUNT, parts>(
            queries, weights + number * stride, stride, keys, at, sums + number * length);
      });
    };
    if (count <= TOGETHER) {
      add(task.keys, [&](int64_t key) { return widen(key, values[0]); });
    } else {
      for (Range keys = task.keys; keys.begin < task.keys.end; keys.begin += RUN) {
        keys.end = std::min(task.keys.end, keys.begin + RUN);
        for (int64_t key = keys.begin; key < keys.end; ++key) widen(key, values[key - keys.begin]);
        add(keys, [&](int64_t key) { return values[key - keys.begin]; });
      }
    }
    for (int64_t number = 0; number < count; ++number)
      for (int part = 0; part < parts; ++part)
        write(
            scratch.queries[number].output + first + part * LANES,
            load<Floats>(sums + number * length + part * LANES) * scratch.queries[number].factor, size);
  }

  // Adds to the sums of COUNT queries; `values` gives the vectors of a key. What some query does not
  // see must not count there, even as 0 * NaN.
  template <int COUNT, int PARTS, typename Values>
  static void add_values(
      const Query* queries, const float* weights, int64_t stride, Range keys, const Values& values,
      float* sums) {
    Floats to[COUNT][PARTS];
    std::memcpy(to, sums, sizeof(to));
    const auto add = [&](const auto& sees) {
      for (int64_t key = keys.begin; key < keys.end; ++key) {
        const Floats* vectors = values(key);
#pragma GCC unroll 4
        for (int query = 0; query < COUNT; ++query) {
          if (!sees(queries[query], key)) continue;
          const Floats weight = Floats{} + weights[query * stride + key];
#pragma GCC unroll 4
          for (int part = 0; part < PARTS; ++part)
            to[query][part] = multiply_add(weight, vectors[part], to[query][part]);
        }
      }
    };
    if (std::all_of(queries, queries + COUNT, [&](const Query& query) {
          return !std::memchr(query.visible + keys.begin, 0, keys.end - keys.begin);
        }))
      add([](const Query&, int64_t) { return true; });
    else
      add([](const Query& query, int64_t key) { return query.visible[key] != 0; });
    std::memcpy(sums, to, sizeof(to));
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
