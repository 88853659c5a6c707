// Attention's products by AMX, in bfloat16; weights are rounded to it, and so is their sum.

#ifdef __AMX_BF16__

namespace {

struct TileProducts {
  using Weight = uint16_t;
  static constexpr int CHUNK = 96;  // queries, about, for which keys and values are arranged once

  const Attention<uint16_t>& attention;
  Tiles tiles{};

  static int64_t padded(int64_t size) { return (size + Tiles::DEPTH - 1) / Tiles::DEPTH * Tiles::DEPTH; }

  void score(const Task& task, Scratch<uint16_t>& scratch, float* scores, int64_t stride) {
    const int64_t dim = padded(attention.dim), count = scratch.queries.size();
    const int64_t words = attention.dim / 2, padded_words = dim / 2;
    uint16_t* rows = words_of<uint16_t>(scratch.rows, count * padded_words);
    for (int64_t number = 0; number < count; ++number) {
      uint16_t* row = rows + number * dim;
      std::copy_n(scratch.queries[number].from, attention.dim, row);
      std::fill(row + attention.dim, row + dim, 0);
    }
    const int64_t size = padded_words * BLOCK;
    uint32_t* blocks = words_of<uint32_t>(
        scratch.keys, padded(task.keys.end - task.keys.begin) / BLOCK * size);
    const uint16_t* keys = attention.keys_of(task);
    for (int64_t key = task.keys.begin; key < task.keys.end; key += BLOCK) {
      uint32_t* block = blocks + (key - task.keys.begin) / BLOCK * size;
      transpose(
          keys + key * attention.key_strides.token, attention.key_strides.token,
          task.keys.end - key, attention.dim, block);
      std::fill(block + words * BLOCK, block + size, 0);
    }
    for (int64_t first = 0; first < count; first += Tiles::ROWS)
      for (int64_t key = task.keys.begin; key < task.keys.end; key += BLOCK)
        tiles.multiply(
            rows + first * dim, dim, std::min(Tiles::ROWS, count - first),
            blocks + (key - task.keys.begin) / BLOCK * size, dim, scores + first * stride + key,
            stride);
  }

  void sum_values(const Task& task, Scratch<uint16_t>& scratch, float* scores, int64_t stride) {
    const uint16_t* weights = reinterpret_cast<uint16_t*>(scores);
    const int64_t count = scratch.queries.size();
    if (pair_values(task, scratch, nullptr))
      for (int64_t first = 0; first < count; first += Tiles::ROWS)
        sum(task, scratch, weights + first * 2 * stride, stride, first,
            std::min(Tiles::ROWS, count - first));
    else
      // 0 * inf is not 0: each query gets zeros for what it does not see.
      for (int64_t number = 0; number < count; ++number) {
        pair_values(task, scratch, scratch.queries[number].visible);
        sum(task, scratch, weights + number * 2 * stride, stride, number, 1);
      }
  }

  // Values of the task's keys, for `Tiles`: [blocks of elements][pairs of keys][BLOCK]. What is not
  // `visible`, where that is passed, is zero. Gives whether all are finite.
  bool pair_values(const Task& task, Scratch<uint16_t>& scratch, const uint8_t* visible) {
    const int64_t pairs = padded(task.keys.end - task.keys.begin) / 2;
    const int64_t dim = attention.value_dim, step = attention.value_strides.token;
    uint32_t* words = words_of<uint32_t>(scratch.keys, pairs * padded(dim));
    const uint16_t* values = attention.values_of(task) + task.keys.begin * step;
    Words exceeds{};
    for (int64_t first = 0; first < dim; first += LANES) {
      const size_t bytes = std::min<int64_t>(LANES, dim - first) * 2;
      const auto read = [&](int64_t key) {
        if (key >= task.keys.end || (visible && !visible[key])) return Words{};
        const uint16_t* from = values + (key - task.keys.begin) * step + first;
        return __builtin_convertvector(load<Halves>(from, bytes), Words);
      };
      uint32_t* to = words + first / BLOCK * BLOCK * pairs + first % BLOCK;
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t key = task.keys.begin + 2 * pair;
        const Words both = read(key) | read(key + 1) << 16;
        // An exponent of ones overflows into the sign.
        exceeds |= (both & 0x7f807f80) + 0x00800080;
        store(to + pair * BLOCK, both);
      }
    }
    return !reduced(exceeds & 0x80008000, [](uint32_t a, uint32_t b) { return a | b; });
  }

  void sum(
      const Task& task, Scratch<uint16_t>& scratch, const uint16_t* weights, int64_t stride,
      int64_t first, int64_t num_rows) {
    alignas(64) float sums[Tiles::ROWS * BLOCK];
    const int64_t depth = padded(task.keys.end - task.keys.begin);
    const uint32_t* words = words_of<uint32_t>(scratch.keys, 0);
    for (int64_t at = 0; at < attention.value_dim; at += BLOCK) {
      tiles.multiply(
          weights + task.keys.begin, 2 * stride, num_rows, words + at * depth / 2, depth, sums,
          BLOCK);
      for (int64_t row = 0; row < num_rows; ++row) {
        const Query<uint16_t>& query = scratch.queries[first + row];
        for (int64_t part = at; part < std::min(at + BLOCK, attention.value_dim); part += LANES) {
          const size_t bytes = std::min<int64_t>(LANES, attention.value_dim - part) * 2;
          const Floats scaled = load<Floats>(sums + row * BLOCK + part - at) * query.factor;
          write(query.output + part, scaled, bytes);
        }
      }
    }
  }
};

}  // namespace

#endif
