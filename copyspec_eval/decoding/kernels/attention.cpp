// Attention of new tokens over cached keys and values, in bfloat16 or float32.
//
// Each query is computed on its own, over its visible keys in their order: its bits depend neither
// on the queries beside it nor on the keys that it does not see. Sums are in float32.

namespace {

constexpr int QUERIES = 12;  // at a time, for their scores
constexpr int WEIGHED = 4;   // queries at a time, for their sums of values
constexpr int CHUNK = 48;    // queries, about, for which keys are transposed once

template <typename Reduce>
inline float reduced(Floats floats, Reduce reduce) {
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      floats[lane] = reduce(floats[lane], floats[lane + half]);
  return floats[0];
}

// e^x of x <= 0, to about one unit in the last place, 0 where that is smaller than normal numbers.
inline Floats exponential(Floats x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: floats are whole numbers there
  const Floats shifted = x * 1.44269504f + magic;
  const Floats power = shifted - magic;
  const Floats rest = x - power * 0.693359375f + power * 2.12194440e-4f;
  Floats result = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  result = result * rest + 8.3334519073e-3f;
  result = result * rest + 4.1665795894e-2f;
  result = result * rest + 1.6666665459e-1f;
  result = result * rest + 5.0000001201e-1f;
  result = result * (rest * rest) + rest + 1.0f;
  const Floats scaled = (Floats)((Ints)result + (((Ints)shifted - 0x4b400000) << 23));
  return x != x ? x : x > -87.0f ? scaled : Floats{};
}

// Sums of values weighted for each of COUNT queries, as PARTS vectors; if PARTS is 0, as one of
// which only `num_last` elements are there.
template <typename T, int COUNT, int PARTS>
inline void multiply_values(
    const float* weights, int64_t weights_stride, const float* factors, const T* values,
    int64_t values_stride, int64_t begin, int64_t end, T* const* outputs, int64_t num_last) {
  using Vector = typename Of<T>::Vector;
  constexpr int parts = std::max(1, PARTS);
  const size_t size = PARTS ? sizeof(Vector) : num_last * sizeof(T);
  Floats sums[COUNT][parts] = {};
  for (int64_t key = begin; key < end; ++key) {
    for (int part = 0; part < parts; ++part) {
      const T* from = values + key * values_stride + part * LANES;
      const Floats value = widened(load<Vector>(from, size));
      for (int query = 0; query < COUNT; ++query)
        sums[query][part] += weights[query * weights_stride + key] * value;
    }
  }
  for (int query = 0; query < COUNT; ++query) {
    for (int part = 0; part < parts; ++part) {
      Vector narrowed;
      narrow(sums[query][part] * factors[query], narrowed);
      store(outputs[query] + part * LANES, narrowed, size);
    }
  }
}

// Scores of the keys `begin` to `end` become weights; gives the factor that makes their sum 1.
inline float weigh(float* scores, const uint8_t* visible, int64_t begin, int64_t end, float scale) {
  const Floats nothing = Floats{} - std::numeric_limits<float>::infinity();
  Floats largest = nothing;
  for (int64_t key = begin; key < end; key += LANES) {
    const Ints seen = __builtin_convertvector(load<Bytes>(visible + key), Ints) != 0;
    const Floats score = seen ? load<Floats>(scores + key) * scale : nothing;
    // What is no number stays, so that it is not taken for a token without keys.
    largest = (score > largest) | (score != score) ? score : largest;
    store(scores + key, score);
  }
  const float maximum =
      reduced(largest, [](float a, float b) { return a > b || a != a ? a : b; });
  if (maximum == nothing[0]) {
    std::fill(scores + begin, scores + end, 0.0f);
    return 0.0f;
  }
  Floats sum = {};
  for (int64_t key = begin; key < end; key += LANES) {
    const Floats weight = exponential(load<Floats>(scores + key) - maximum);
    sum += weight;
    store(scores + key, weight);
  }
  return 1.0f / reduced(sum, [](float a, float b) { return a + b; });
}

struct Strides {
  int64_t row, head, token;
};

// The visible keys of a token are among these.
struct Range {
  int64_t begin, end;
};

// What a thread does at a time: neighbouring tokens of a row, and the heads that share keys.
struct Task {
  int64_t row, first_token, num_tokens, key_row, key_head;
  Range keys;
};

template <typename T>
struct Scratch {
  std::vector<T*> outputs;
  std::vector<float> scores, factors;
  std::vector<uint32_t> queries, keys;
  std::vector<uint8_t> visible;
};

template <typename T>
struct Attention {
  const T *query, *key, *value;
  const uint8_t* mask;  // [rows, tokens, extent]
  T* output;            // [rows, tokens, heads, dim]
  Strides query_strides, key_strides, value_strides;
  int64_t num_rows, num_tokens, heads, key_heads, dim, extent;
  float scale;

  int64_t groups() const { return heads / key_heads; }
  int64_t num_words() const { return dim * sizeof(T) / 4; }

  Range visible_range(int64_t row, int64_t token) const {
    const uint8_t* masks = mask + (row * num_tokens + token) * extent;
    Range range{0, extent};
    while (range.end > 0 && !masks[range.end - 1]) --range.end;
    while (range.begin < range.end && !masks[range.begin]) ++range.begin;
    return range;
  }

  // `key_rows`: of the tokens of a single row; without it, a row's keys have its number.
  std::vector<Task> tasks(const int64_t* key_rows) const {
    const int64_t most = std::max<int64_t>(1, CHUNK / groups());
    std::vector<Task> tasks;
    for (int64_t row = 0; row < num_rows; ++row) {
      int64_t end = 0;
      while (end < num_tokens) {
        Task task{row, end, 0, key_rows ? key_rows[end] : row, 0, {extent, 0}};
        while (end < num_tokens && task.num_tokens < most &&
               (!key_rows || key_rows[end] == task.key_row)) {
          const Range range = visible_range(row, end++);
          task.keys.begin = std::min(task.keys.begin, range.begin);
          task.keys.end = std::max(task.keys.end, range.end);
          ++task.num_tokens;
        }
        task.keys.begin = task.keys.begin / BLOCK * BLOCK;
        for (task.key_head = 0; task.key_head < key_heads; ++task.key_head) tasks.push_back(task);
      }
    }
    return tasks;
  }

  void run(const Task& task, Scratch<T>& scratch) const {
    const int64_t count = task.num_tokens * groups();
    const int64_t stride = (task.keys.end + BLOCK - 1) / BLOCK * BLOCK;  // of the scores
    scratch.queries.resize(count * num_words());
    scratch.scores.resize(count * stride);
    scratch.factors.resize(count);
    scratch.outputs.resize(count);
    scratch.keys.resize(num_words() * BLOCK);
    scratch.visible.assign(stride, 0);
    read_queries(task, scratch);
    score(task, scratch, stride);
    for (int64_t number = 0; number < count; ++number) {
      const int64_t token = task.first_token + number / groups();
      const uint8_t* visible = mask + (task.row * num_tokens + token) * extent;
      std::copy(visible, visible + task.keys.end, scratch.visible.begin());
      scratch.factors[number] = weigh(
          scratch.scores.data() + number * stride, scratch.visible.data(), task.keys.begin, stride,
          scale);
    }
    sum_values(task, scratch, stride);
  }

  void read_queries(const Task& task, Scratch<T>& scratch) const {
    in_tiles<QUERIES>(scratch.outputs.size(), [&]<int COUNT>(int64_t first) {
      for (int64_t number = first; number < first + COUNT; ++number) {
        const int64_t token = task.first_token + number / groups();
        const int64_t head = task.key_head * groups() + number % groups();
        const T* from = query + task.row * query_strides.row + head * query_strides.head +
            token * query_strides.token;
        uint32_t* to = scratch.queries.data() + first * num_words() + number - first;
        interleave(from, dim, COUNT, to);
        scratch.outputs[number] = output + ((task.row * num_tokens + token) * heads + head) * dim;
      }
    });
  }

  void score(const Task& task, Scratch<T>& scratch, int64_t stride) const {
    const T* keys = key + task.key_row * key_strides.row + task.key_head * key_strides.head;
    for (int64_t first = task.keys.begin; first < task.keys.end; first += BLOCK) {
      const T* block = keys + first * key_strides.token;
      transpose(block, key_strides.token, extent - first, dim, scratch.keys.data());
      in_tiles<QUERIES>(scratch.outputs.size(), [&]<int COUNT>(int64_t number) {
        Floats products[COUNT][2];
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

  void sum_values(const Task& task, Scratch<T>& scratch, int64_t stride) const {
    constexpr int most = 4;
    const T* values = value + task.key_row * value_strides.row + task.key_head * value_strides.head;
    in_tiles<WEIGHED>(scratch.outputs.size(), [&]<int COUNT>(int64_t number) {
      const auto sum = [&]<int PARTS>(int64_t first) {
        T* outputs[COUNT];
        for (int query = 0; query < COUNT; ++query)
          outputs[query] = scratch.outputs[number + query] + first;
        multiply_values<T, COUNT, PARTS>(
            scratch.scores.data() + number * stride, stride, scratch.factors.data() + number,
            values + first, value_strides.token, task.keys.begin, task.keys.end, outputs,
            dim - first);
      };
      int64_t first = 0;
      for (; first + most * LANES <= dim; first += most * LANES)
        sum.template operator()<most>(first);
      for (; first + LANES <= dim; first += LANES) sum.template operator()<1>(first);
      if (first < dim) sum.template operator()<0>(first);
    });
  }
};

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
// tokens, heads, key heads, dim and extent.
#define ATTEND(DTYPE, T)                                                                      \
  extern "C" void attend_##DTYPE(                                                             \
      const T* query, const T* key, const T* value, const uint8_t* mask, T* output,           \
      const int64_t* key_rows, const int64_t* sizes, float scale) {                           \
    const auto strides = [&](int at) {                                                        \
      return Strides{sizes[at], sizes[at + 1], sizes[at + 2]};                                \
    };                                                                                        \
    const Attention<T> attention{                                                             \
        query, key, value, mask, output, strides(0), strides(3), strides(6), sizes[9],        \
        sizes[10], sizes[11], sizes[12], sizes[13], sizes[14], scale};                        \
    attend(attention, key_rows);                                                              \
  }
ATTEND(bfloat16, uint16_t)
ATTEND(float32, float)
