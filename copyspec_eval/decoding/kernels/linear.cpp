// Linear layers in bfloat16 or float32; of a few tokens, as fast as memory gives their weights.
//
// Each output is summed over the inputs in their order: a token's bits do not depend on the tokens
// beside it. Sums are in float32.
//
// Weights are packed as [blocks of outputs][words of inputs][BLOCK], where a word is a float32 or two
// bfloat16, and words are filled up with zeros to a multiple of 16.

namespace {

struct Pack {
  const Element* weight;  // [outputs, inputs]
  uint32_t* packed;
  int64_t num_outputs, num_inputs, num_words;

  bool run() const {
    const int64_t size = num_words * BLOCK;
#pragma omp parallel for
    for (int64_t first = 0; first < num_outputs; first += BLOCK) {
      uint32_t* to = packed + first / BLOCK * size;
      transpose(weight + first * num_inputs, num_inputs, num_outputs - first, num_inputs, to);
      std::fill(to + num_inputs * sizeof(Element) / 4 * BLOCK, to + size, 0);
    }
    return true;
  }
};

struct Linear {
  const Element* hidden;         // [tokens, inputs]
  const uint32_t* packed;        // see above
  const Element* bias;           // [outputs], or null
  Element* output;               // [tokens, outputs]
  int64_t num_tokens, num_inputs, num_outputs, num_words;

  const uint32_t* block_at(int64_t first_output) const {
    return packed + first_output * num_words;
  }

  // A vector of a token's outputs: adds the bias, rounds, and writes.
  void finish(int64_t token, int64_t first, Floats sums) const {
    const int64_t count = std::min<int64_t>(LANES, num_outputs - first);
    if (count <= 0) return;
    const size_t size = count * sizeof(Element);
    if (bias) sums += read(bias + first, size);
    write(output + token * num_outputs + first, sums, size);
  }

#ifdef HAS_TILES

  bool run() const {
    const int64_t depth = 2 * num_words;
    std::vector<uint16_t> filled;
    const uint16_t* inputs = hidden;
    if (depth != num_inputs) {
      filled = Tiles::filled_up(inputs, num_inputs, num_tokens, num_inputs);
      inputs = filled.data();
    }
#pragma omp parallel
    {
      Tiles tiles;
      alignas(64) float sums[Tiles::ROWS * BLOCK];
#pragma omp for
      for (int64_t at = 0; at < num_outputs; at += BLOCK) {
        for (int64_t token = 0; token < num_tokens; token += Tiles::ROWS) {
          const int64_t count = std::min(Tiles::ROWS, num_tokens - token);
          tiles.multiply<64>(
              inputs + token * depth, depth, count, block_at(at), depth, sums, BLOCK);
          for (int64_t row = 0; row < count; ++row)
            for (int part = 0; part < BLOCK; part += LANES)
              finish(token + row, at + part, load<Floats>(sums + row * BLOCK + part));
        }
      }
    }
    return true;
  }

#else

  bool run() const {
    const int64_t words = words_in(num_inputs);
    std::vector<uint32_t> interleaved(num_tokens * words);
#pragma omp parallel if (num_outputs > BLOCK)
    {
#pragma omp for
      for (int64_t tile = 0; tile < (num_tokens + ROWS - 1) / ROWS; ++tile) {
        const int64_t first = tile * ROWS, count = std::min<int64_t>(ROWS, num_tokens - first);
        for (int64_t token = 0; token < count; ++token)
          interleave(
              hidden + (first + token) * num_inputs, num_inputs, count,
              interleaved.data() + first * words + token);
      }
#pragma omp for
      for (int64_t at = 0; at < num_outputs; at += BLOCK) {
        in_tiles<ROWS>(num_tokens, [&]<int COUNT>(int64_t first) {
          // Of few tokens, the processor itself fetches as fast as memory can.
          constexpr int ahead = COUNT > 2 ? 64 : 0;
          Floats products[COUNT][VECTORS];
          multiply<COUNT, ahead>(
              interleaved.data() + first * words, block_at(at), words / HALVES, products);
          for (int token = 0; token < COUNT; ++token)
            for (int part = 0; part < VECTORS; ++part)
              finish(first + token, at + part * LANES, products[token][part]);
        });
      }
    }
    return true;
  }

#endif
};

}  // namespace

KERNEL(pack, Pack)
KERNEL(linear, Linear)

#ifdef HAS_TILES
extern "C" void uses_tiles() {}  // says so by being there
#endif
