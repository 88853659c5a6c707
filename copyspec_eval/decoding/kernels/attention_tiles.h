// Attention's products by AMX, in bfloat16; weights are rounded to it, and so is their sum.

#ifdef HAS_TILES

namespace {

struct Products {
  using Weight = uint16_t;
  static constexpr int CHUNK = 96;  // queries, about, for which keys and values are read once

  const Attention& attention;
  Tiles tiles{};

  // Keys are the rows of the products, since a block would have to be transposed.
  void score(const Task& task, Scratch& scratch, float* scores, int64_t stride) {
    const int64_t dim = Tiles::padded(attention.dim), count = scratch.queries.size();
    const int64_t size = dim / 2 * BLOCK, num_words = (count + BLOCK - 1) / BLOCK * size;
    uint32_t* blocks = words_of<uint32_t>(scratch.rows, num_words);
    std::fill_n(blocks, num_words, 0);
    for (int64_t number = 0; number < count; ++number)
      interleave(
          scratch.queries[number].from, attention.dim, BLOCK,
          blocks + number / BLOCK * size + number % BLOCK);
    const int64_t step = attention.key_strides.token;
    const uint16_t* keys = attention.keys_of(task);
    alignas(64) float sums[Tiles::ROWS * BLOCK];
    for (int64_t key = task.keys.begin; key < task.keys.end; key += BLOCK) {
      const int64_t num_keys = std::min<int64_t>(BLOCK, task.keys.end - key);
      for (int64_t ahead = key + BLOCK; ahead < std::min(key + 2 * BLOCK, task.keys.end); ++ahead)
        prefetch(keys + ahead * step, attention.dim);
      const uint16_t* rows = keys + key * step;
      int64_t row_step = step;
      std::vector<uint16_t> filled;
      if (dim != attention.dim) {
        filled = Tiles::filled_up(rows, step, num_keys, attention.dim);
        rows = filled.data(), row_step = dim;
      }
      for (int64_t first = 0; first < count; first += BLOCK) {
        tiles.multiply(rows, row_step, num_keys, blocks + first / BLOCK * size, dim, sums, BLOCK);
        const int64_t num_queries = std::min<int64_t>(BLOCK, count - first);
        write_columns(sums, num_queries, scores + first * stride + key, stride);
      }
    }
  }

  // The first `count` columns of [keys of a block][queries of a block], each as a row.
  static void write_columns(const float* sums, int64_t count, float* to, int64_t stride) {
    for (int64_t first = 0; first < count; first += LANES)
      for (int64_t key = 0; key < BLOCK; key += LANES) {
        Words square[LANES];
        for (int64_t row = 0; row < LANES; ++row)
          square[row] = load<Words>(sums + (key + row) * BLOCK + first);
        exchange_all(square);
        for (int64_t query = first; query < std::min(first + LANES, count); ++query)
          store(to + query * stride + key, square[query - first]);
      }
  }

  void sum_values(const Task& task, Scratch& scratch, float* scores, int64_t stride) {
    const uint16_t* weights = reinterpret_cast<uint16_t*>(scores);
    const int64_t count = scratch.queries.size();
    pair_values(task, scratch, nullptr);
    bool are_finite = true;
    for (int64_t first = 0; first < count; first += Tiles::ROWS)
      are_finite &= sum(
          task, scratch, weights + first * 2 * stride, stride, first,
          std::min(Tiles::ROWS, count - first));
    if (are_finite) return;
    // 0 * inf is not 0: each query gets zeros for what it does not see.
    for (int64_t number = 0; number < count; ++number) {
      pair_values(task, scratch, scratch.queries[number].visible);
      sum(task, scratch, weights + number * 2 * stride, stride, number, 1);
    }
  }

  // Values of the task's keys, for `Tiles`: [blocks of elements][pairs of keys][BLOCK], of which the
  // even elements come first. What is not `visible`, where that is passed, is zero.
  void pair_values(const Task& task, Scratch& scratch, const uint8_t* visible) {
    const int64_t pairs = Tiles::padded(task.keys.end - task.keys.begin) / 2;
    const int64_t dim = attention.value_dim, step = attention.value_strides.token;
    uint32_t* words = words_of<uint32_t>(scratch.keys, pairs * Tiles::padded(dim));
    const uint16_t* values = attention.values_of(task);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t key = task.keys.begin + 2 * pair;
      for (int64_t ahead = key + BLOCK; ahead < std::min(key + BLOCK + 2, task.keys.end); ++ahead)
        prefetch(values + ahead * step, dim);
      for (int64_t first = 0; first < dim; first += BLOCK) {
        const size_t bytes = std::min<int64_t>(BLOCK, dim - first) * 2;
        const auto read = [&](int64_t key) {
          if (key >= task.keys.end || (visible && !visible[key])) return Words{};
          return load<Words>(values + key * step + first, bytes);
        };
        const Words one = read(key), other = read(key + 1);
        uint32_t* to = words + (first / BLOCK * pairs + pair) * BLOCK;
        store(to, (one & 0xffff) | other << 16);
        store(to + LANES, one >> 16 | (other & 0xffff0000));
      }
    }
  }

  // Gives whether all are finite.
  bool sum(
      const Task& task, Scratch& scratch, const uint16_t* weights, int64_t stride,
      int64_t first, int64_t num_rows) {
    alignas(64) float sums[Tiles::ROWS * BLOCK];
    const int64_t depth = Tiles::padded(task.keys.end - task.keys.begin);
    const uint32_t* words = words_of<uint32_t>(scratch.keys, 0);
    Floats zeros{};  // 0 * x, which is NaN if x is not finite
    for (int64_t at = 0; at < attention.value_dim; at += BLOCK) {
      tiles.multiply(
          weights + task.keys.begin, 2 * stride, num_rows, words + at * depth / 2, depth, sums,
          BLOCK);
      for (int64_t row = 0; row < num_rows; ++row) {
        const Query& query = scratch.queries[first + row];
        const size_t bytes = std::min<int64_t>(BLOCK, attention.value_dim - at) * 2;
        Words both{};
        for (int part = 0; part < VECTORS; ++part) {
          const Floats scaled = load<Floats>(sums + row * BLOCK + part * LANES) * query.factor;
          zeros += scaled * 0.0f;
          Halves halves;
          narrow(scaled, halves);
          both |= __builtin_convertvector(halves, Words) << 16 * part;
        }
        store(query.output + at, both, bytes);
      }
    }
    return reduced(zeros, [](float a, float b) { return a + b; }) == 0.0f;
  }
};

}  // namespace

#endif
