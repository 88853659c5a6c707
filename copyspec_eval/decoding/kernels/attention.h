// What attention consists of, whatever computes its products.
//
// Each query is computed on its own, over its visible keys in their order: its bits depend neither
// on the queries beside it nor on the keys that it does not see, whatever these hold. Sums are in
// float32.

namespace {

struct Strides {
  int64_t row, head, token;
};

struct Range {
  int64_t begin, end;
};

// What a thread does at a time: neighbouring tokens of a row, and the heads that share keys.
struct Task {
  int64_t first_token, num_tokens, key_row, key_head;
  Range keys;  // the visible keys of its tokens are among these; `begin` is a multiple of BLOCK
};

// A cache line.
struct alignas(64) Line {
  uint32_t words[16];
};

// Room for `size` words of 32 bits, at an address that is a multiple of 64.
template <typename Word>
Word* words_of(std::vector<Line>& lines, int64_t size) {
  if (int64_t(lines.size()) * 16 < size) lines.resize((size + 15) / 16);
  return reinterpret_cast<Word*>(lines.data());
}

// A head of a token.
struct Query {
  const Element* from;
  Element* output;
  const uint8_t* visible;
  int64_t head;
  float factor;  // of the sum of values
};

// A thread's memory.
struct Scratch {
  std::vector<Query> queries;
  std::vector<Line> scores, rows, keys;
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

struct Attention {
  const Element *query, *key, *value;
  const uint8_t* mask;      // [tokens, extent]
  const float* sinks;       // [heads], or null
  const int64_t* key_rows;  // [tokens]
  Element* output;                // [tokens, heads, value dim]
  Strides query_strides, key_strides, value_strides;
  int64_t num_tokens, heads, num_rows, key_heads, dim, value_dim, extent;
  double scale, softcap;  // 0 for no cap

  bool run() const;

  int64_t groups() const { return heads / key_heads; }

  // The keys, and the values, of a task: its first token's.
  const Element* keys_of(const Task& task) const {
    return key + task.key_row * key_strides.row + task.key_head * key_strides.head;
  }
  const Element* values_of(const Task& task) const {
    return value + task.key_row * value_strides.row + task.key_head * value_strides.head;
  }

  // Each has about `chunk` queries.
  std::vector<Task> tasks(int64_t chunk) const {
    const int64_t most = std::max<int64_t>(1, chunk / groups());
    std::vector<Task> tasks;
    for (int64_t end = 0; end < num_tokens;) {
      Task task{end, 0, key_rows[end], 0, {}};
      for (; end < num_tokens && task.num_tokens < most && key_rows[end] == task.key_row; ++end)
        ++task.num_tokens;
      for (task.key_head = 0; task.key_head < key_heads; ++task.key_head) tasks.push_back(task);
    }
    return tasks;
  }

  // Products: what computes scores, and sums of values by weights of type Products::Weight, which
  // stand where the scores were.
  template <typename Products>
  void run_task(Task task, Scratch& scratch, Products& products) const {
    find_keys(task);
    find_queries(task, scratch);
    const int64_t count = scratch.queries.size();
    // Of the scores; an odd number of lines, for rows whose distance is a power of 2 share a cache set.
    const int64_t stride = (task.keys.end + BLOCK - 1) / BLOCK * BLOCK + LANES;
    float* scores = words_of<float>(scratch.scores, count * stride);
    products.score(task, scratch, scores, stride);
    for (int64_t number = 0; number < count; ++number) {
      const float* sink = sinks ? sinks + scratch.queries[number].head : nullptr;
      scratch.queries[number].factor = weigh<typename Products::Weight>(
          scores + number * stride, scratch.queries[number].visible, task.keys, sink);
    }
    products.sum_values(task, scratch, scores, stride);
  }

  void find_keys(Task& task) const {
    task.keys = {extent, 0};
    for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
      const Range range = visible_range(mask + token * extent, extent);
      task.keys.begin = std::min(task.keys.begin, range.begin);
      task.keys.end = std::max(task.keys.end, range.end);
    }
    // Without any visible key the range is empty.
    task.keys.begin = std::min(task.keys.begin, task.keys.end) / BLOCK * BLOCK;
  }

  void find_queries(const Task& task, Scratch& scratch) const {
    scratch.queries.clear();
    for (int64_t number = 0; number < task.num_tokens * groups(); ++number) {
      const int64_t token = task.first_token + number / groups();
      const int64_t head = task.key_head * groups() + number % groups();
      scratch.queries.push_back(
          {query + head * query_strides.head + token * query_strides.token,
           output + (token * heads + head) * value_dim, mask + token * extent, head, 0.0f});
    }
  }

  // Scores become weights, which are zero behind the keys; gives the factor that makes their sum 1.
  template <typename Weight>
  float weigh(float* scores, const uint8_t* visible, Range keys, const float* sink) const {
    const Floats nothing = Floats{} - std::numeric_limits<float>::infinity();
    const float factor = scale, cap = softcap;
    const bool is_capped = cap > 0;  // a comparison of floats would stay in the loop
    Floats largest = nothing;
    Bytes any{};
    for (int64_t key = keys.begin; key < keys.end; key += LANES) {
      const Bytes bytes = load<Bytes>(visible + key, keys.end - key);
      Floats score = load<Floats>(scores + key) * factor;
      if (is_capped) score = cap * hyperbolic_tangent(score / cap);
      score = __builtin_convertvector(bytes, Ints) != 0 ? score : nothing;
      any |= bytes;
      largest = larger(score, largest);
      store(scores + key, score);
    }
    Weight* weights = reinterpret_cast<Weight*>(scores);  // each takes no more room than its score
    const int64_t end = (keys.end + BLOCK - 1) / BLOCK * BLOCK;
    if (!reduced(any, [](uint8_t a, uint8_t b) { return a | b; })) {
      std::fill(weights + keys.begin, weights + end, 0);
      return 0.0f;
    }
    float maximum = reduced(largest, [](float a, float b) { return std::max(a, b); });
    if (sink) maximum = std::max(maximum, *sink);
    Floats sum = {};
    for (int64_t key = keys.begin; key < end; key += LANES) {
      VectorOf<Weight> weight{};
      if (key < keys.end) narrow(exponential<Weight>(load<Floats>(scores + key) - maximum), weight);
      sum += widened(weight);
      store(weights + key, weight);
    }
    float total = reduced(sum, [](float a, float b) { return a + b; });
    if (sink) total += exponential(Floats{} + (*sink - maximum))[0];
    return 1.0f / total;
  }
};

}  // namespace
