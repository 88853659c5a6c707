// Attention of new tokens over cached keys and values, in bfloat16 or float32.
//
// Each query is computed on its own, over its visible keys in their order: its bits depend neither
// on the queries beside it nor on the keys that it does not see, whatever these hold. Sums are in
// float32.

namespace {

constexpr int WEIGHED = 4;  // queries at a time, for their sums of values
constexpr int CHUNK = 48;   // queries, about, for which keys are transposed once

struct Strides {
  int64_t row, head, token;
};

struct Range {
  int64_t begin, end;
};

// What a thread does at a time: neighbouring tokens of a row, and the heads that share keys.
struct Task {
  int64_t row, first_token, num_tokens, key_row, key_head;
  Range keys;  // the visible keys of its tokens are among these; `begin` is a multiple of BLOCK
};

template <typename T>
struct Scratch {
  std::vector<T*> outputs;
  std::vector<const uint8_t*> visible;
  std::vector<float> scores, factors;
  std::vector<uint32_t> queries, keys;
};

// The range of a mask's bytes that are not zero; {extent, 0} if there are none.
inline Range visible_range(const uint8_t* mask, int64_t extent) {
  Range range{0, extent};
  const auto words = [&](int64_t at) { return load<uint64_t>(mask + at); };
  while (range.end >= 8 && !words(range.end - 8)) range.end -= 8;
  while (range.end > 0 && !mask[range.end - 1]) --range.end;
  if (!range.end) return {extent, 0};
  while (range.begin + 8 <= range.end && !words(range.begin)) range.begin += 8;
  while (!mask[range.begin]) ++range.begin;
  return range;
}

template <typename T>
struct Attention {
  const T *query, *key, *value;
  const uint8_t* mask;   // [rows, tokens, extent]
  const float* sinks;    // [heads], or null
  T* output;             // [rows, tokens, heads, value dim]
  Strides query_strides, key_strides, value_strides;
  int64_t num_rows, num_tokens, heads, key_heads, dim, value_dim, extent;
  float scale, softcap;

  int64_t groups() const { return heads / key_heads; }
  int64_t num_words() const { return dim * sizeof(T) / 4; }
  int64_t token_of(const Task& task, int64_t number) const {
    return task.first_token + number / groups();
  }
  int64_t head_of(const Task& task, int64_t number) const {
    return task.key_head * groups() + number % groups();
  }

  // `key_rows`: of the tokens of a single row; without it, a row's keys have its number.
  std::vector<Task> tasks(const int64_t* key_rows) const {
    const int64_t most = std::max<int64_t>(1, CHUNK / groups());
    std::vector<Task> tasks;
    for (int64_t row = 0; row < num_rows; ++row) {
      int64_t end = 0;
      while (end < num_tokens) {
        Task task{row, end, 0, key_rows ? key_rows[end] : row, 0, {}};
        while (end < num_tokens && task.num_tokens < most &&
               (!key_rows || key_rows[end] == task.key_row)) {
          ++task.num_tokens;
          ++end;
        }
        for (task.key_head = 0; task.key_head < key_heads; ++task.key_head) tasks.push_back(task);
      }
    }
    return tasks;
  }

  void run(Task task, Scratch<T>& scratch) const {
    task.keys = {extent, 0};
    for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
      const Range range = visible_range(mask + (task.row * num_tokens + token) * extent, extent);
      task.keys.begin = std::min(task.keys.begin, range.begin);
      task.keys.end = std::max(task.keys.end, range.end);
    }
    // Without any visible key the range is empty.
    task.keys.begin = std::min(task.keys.begin, task.keys.end) / BLOCK * BLOCK;
    const int64_t count = task.num_tokens * groups();
    const int64_t stride = (task.keys.end + BLOCK - 1) / BLOCK * BLOCK;  // of the scores
    scratch.queries.resize(count * num_words());
    scratch.scores.resize(count * stride);
    scratch.factors.resize(count);
    scratch.outputs.resize(count);
    scratch.visible.resize(count);
    scratch.keys.resize(num_words() * BLOCK);
    read_queries(task, scratch);
    score(task, scratch, stride);
    for (int64_t number = 0; number < count; ++number) {
      const float* sink = sinks ? sinks + head_of(task, number) : nullptr;
      scratch.factors[number] = weigh(
          scratch.scores.data() + number * stride, scratch.visible[number], task.keys, sink);
    }
    sum_values(task, scratch, stride);
  }

  void read_queries(const Task& task, Scratch<T>& scratch) const {
    in_tiles<ROWS>(scratch.outputs.size(), [&]<int COUNT>(int64_t first) {
      for (int64_t number = first; number < first + COUNT; ++number) {
        const int64_t token = token_of(task, number), head = head_of(task, number);
        const T* from = query + task.row * query_strides.row + head * query_strides.head +
            token * query_strides.token;
        uint32_t* to = scratch.queries.data() + first * num_words() + number - first;
        interleave(from, dim, COUNT, to);
        const int64_t row_and_token = task.row * num_tokens + token;
        scratch.outputs[number] = output + (row_and_token * heads + head) * value_dim;
        scratch.visible[number] = mask + row_and_token * extent;
      }
    });
  }

  void score(const Task& task, Scratch<T>& scratch, int64_t stride) const {
    const T* keys = key + task.key_row * key_strides.row + task.key_head * key_strides.head;
    for (int64_t first = task.keys.begin; first < task.keys.end; first += BLOCK) {
      const T* block = keys + first * key_strides.token;
      transpose(block, key_strides.token, extent - first, dim, scratch.keys.data());
      in_tiles<ROWS>(scratch.outputs.size(), [&]<int COUNT>(int64_t number) {
        Floats products[COUNT][VECTORS];
        multiply<T>(
            scratch.queries.data() + number * num_words(), scratch.keys.data(), num_words(),
            products);
        for (int query = 0; query < COUNT; ++query)
          std::memcpy(
              scratch.scores.data() + (number + query) * stride + first, products[query],
              sizeof(products[query]));
      });
    }
  }

  // Scores become weights; gives the factor that makes their sum 1.
  float weigh(float* scores, const uint8_t* visible, Range keys, const float* sink) const {
    const Floats nothing = Floats{} - std::numeric_limits<float>::infinity();
    Floats largest = nothing;
    for (int64_t key = keys.begin; key < keys.end; key += LANES) {
      const size_t size = std::min<int64_t>(LANES, keys.end - key);
      const Ints seen = __builtin_convertvector(load<Bytes>(visible + key, size), Ints) != 0;
      Floats score = load<Floats>(scores + key) * scale;
      if (softcap > 0) score = softcap * hyperbolic_tangent(score / softcap);
      score = seen ? score : nothing;
      // NaN stays, so that it is not taken for a token without keys.
      largest = (score > largest) | (score != score) ? score : largest;
      store(scores + key, score);
    }
    float maximum = reduced(largest, [](float a, float b) { return a > b || a != a ? a : b; });
    if (sink && !(maximum > *sink) && maximum == maximum) maximum = *sink;
    if (maximum == nothing[0]) {
      std::fill(scores + keys.begin, scores + keys.end, 0.0f);
      return 0.0f;
    }
    Floats sum = {};
    for (int64_t key = keys.begin; key < keys.end; key += LANES) {
      const Floats weight = exponential(load<Floats>(scores + key) - maximum);
      sum += weight;
      store(scores + key, weight);
    }
    float total = reduced(sum, [](float a, float b) { return a + b; });
    if (sink) total += exponential(Floats{} + (*sink - maximum))[0];
    return 1.0f / total;
  }

  void sum_values(const Task& task, Scratch<T>& scratch, int64_t stride) const {
    constexpr int most = 4;
    in_tiles<WEIGHED>(scratch.outputs.size(), [&]<int COUNT>(int64_t number) {
      int64_t first = 0;
      for (; first + most * LANES <= value_dim; first += most * LANES)
        sum_part<COUNT, most>(task, scratch, stride, number, first);
      for (; first + LANES <= value_dim; first += LANES)
        sum_part<COUNT, 1>(task, scratch, stride, number, first);
      if (first < value_dim) sum_part<COUNT, 0>(task, scratch, stride, number, first);
    });
  }

  // Elements from `first` on, as PARTS vectors, of the sums of COUNT queries; if PARTS is 0, what is
  // left of a vector. A value that some query does not see must not count there, even as 0 * NaN.
  template <int COUNT, int PARTS>
  void sum_part(
      const Task& task, Scratch<T>& scratch, int64_t stride, int64_t number, int64_t first) const {
    using Vector = typename Of<T>::Vector;
    constexpr int parts = std::max(1, PARTS);
    const size_t size = PARTS ? sizeof(Vector) : (value_dim - first) * sizeof(T);
    const T* values =
        value + task.key_row * value_strides.row + task.key_head * value_strides.head + first;
    const float* weights = scratch.scores.data() + number * stride;
    const uint8_t* const* visible = scratch.visible.data() + number;
    Floats sums[COUNT][parts] = {};
    for (int64_t key = task.keys.begin; key < task.keys.end; ++key) {
      Floats vectors[parts];
      for (int part = 0; part < parts; ++part)
        vectors[part] =
            widened(load<Vector>(values + key * value_strides.token + part * LANES, size));
#pragma GCC unroll 4
      for (int query = 0; query < COUNT; ++query) {
        if (!visible[query][key]) continue;
        const Floats weight = Floats{} + weights[query * stride + key];
#pragma GCC unroll 4
        for (int part = 0; part < parts; ++part)
          sums[query][part] = multiply_add(weight, vectors[part], sums[query][part]);
      }
    }
    for (int query = 0; query < COUNT; ++query) {
      for (int part = 0; part < parts; ++part) {
        Vector narrowed;
        narrow(sums[query][part] * scratch.factors[number + query], narrowed);
        store(scratch.outputs[number + query] + first + part * LANES, narrowed, size);
      }
    }
  }
};

inline bool are_under(const int64_t* indices, int64_t count, int64_t end) {
  return std::all_of(indices, indices + count, [&](int64_t index) {
    return index >= 0 && index < end;
  });
}

template <typename T>
void attend(const Attention<T>& attention, const int64_t* key_rows) {
  const std::vector<Task> tasks = attention.tasks(key_rows);
#pragma omp parallel for schedule(dynamic)
  for (size_t number = 0; number < tasks.size(); ++number) {
    static thread_local Scratch<T> scratch;
    attention.run(tasks[number], scratch);
  }
}

}  // namespace

// `sizes`: strides of rows, heads and tokens of query, key and value, in elements; then rows,
// tokens, heads, key heads, dim, value dim, extent and key rows. `softcap`: 0 for none. Gives
// whether there are all of the key rows; else nothing is done.
#define ATTEND(DTYPE, T)                                                                       \
  extern "C" bool attend_##DTYPE(                                                              \
      const T* query, const T* key, const T* value, const uint8_t* mask, const float* sinks,   \
      const int64_t* key_rows, T* output, const int64_t* sizes, float scale, float softcap) {  \
    const auto strides = [&](int at) {                                                         \
      return Strides{sizes[at], sizes[at + 1], sizes[at + 2]};                                 \
    };                                                                                         \
    const Attention<T> attention{                                                              \
        query, key, value, mask, sinks, output, strides(0), strides(3), strides(6), sizes[9],  \
        sizes[10], sizes[11], sizes[12], sizes[13], sizes[14], sizes[15], scale, softcap};     \
    if (key_rows && !are_under(key_rows, sizes[10], sizes[16])) return false;                  \
    attend(attention, key_rows);                                                               \
    return true;                                                                               \
  }
ATTEND(bfloat16, uint16_t)
ATTEND(float32, float)

// Writes the keys and values of a forward into the cache, tensors of any dtype: `size` bytes a head
// and token. `sizes`: tokens; tokens per row of the forward; heads; rows and capacity of the cache;
// then of keys and of values: bytes per head and token, strides in bytes of rows, heads and tokens of
// the forward, and of the cache. `rows` are of the forward's rows, or of its tokens if it has a single
// row; `positions` of tokens. Gives whether the cache has them all; else nothing is written.
extern "C" bool write_states(
    const char* keys, const char* values, char* key_cache, char* value_cache, const int64_t* rows,
    const int64_t* positions, const int64_t* sizes, bool has_row_per_token) {
  const int64_t num_tokens = sizes[0], width = sizes[1], heads = sizes[2];
  const int64_t num_rows = has_row_per_token ? num_tokens : num_tokens / width;
  if (!are_under(rows, num_rows, sizes[3]) || !are_under(positions, num_tokens, sizes[4]))
    return false;
  for (int store = 0; store < 2; ++store) {
    const int64_t* of_store = sizes + 5 + 7 * store;
    const Strides from{of_store[1], of_store[2], of_store[3]};
    const Strides to{of_store[4], of_store[5], of_store[6]};
    for (int64_t token = 0; token < num_tokens; ++token) {
      const int64_t row = token / width;
      const char* source = (store ? values : keys) + row * from.row + token % width * from.token;
      char* target = (store ? value_cache : key_cache) +
          rows[has_row_per_token ? token : row] * to.row + positions[token] * to.token;
      for (int64_t head = 0; head < heads; ++head)
        std::memcpy(target + head * to.head, source + head * from.head, of_store[0]);
    }
  }
  return true;
}
