// Linear layers in bfloat16 or float32; of a few tokens, as fast as memory gives their weights.
//
// Each output is summed over the inputs in their order: a token's bits do not depend on the tokens
// beside it. Sums are in float32.
//
// Weights are packed as [blocks of outputs][words of inputs][BLOCK], where a word is a float32 or two
// bfloat16, and words are filled up with zeros to a multiple of 16. Layers that read the same
// inputs follow each other, each from a new block on, and each has an output of its own.

namespace {

template <typename T>
int64_t padded_words(int64_t num_inputs) {
  constexpr int per_word = 4 / sizeof(T), words = 16;
  return (num_inputs + words * per_word - 1) / (words * per_word) * words;
}

template <typename T>
struct Pack {
  const T* weight;  // [outputs, inputs]
  uint32_t* packed;
  int64_t num_outputs, num_inputs;

  bool run() const {
    const int64_t size = padded_words<T>(num_inputs) * BLOCK;
#pragma omp parallel for
    for (int64_t first = 0; first < num_outputs; first += BLOCK) {
      uint32_t* to = packed + first / BLOCK * size;
      transpose(weight + first * num_inputs, num_inputs, num_outputs - first, num_inputs, to);
      std::fill(to + num_inputs * sizeof(T) / 4 * BLOCK, to + size, 0);
    }
    return true;
  }
};

template <typename T>
struct Linear {
  const T* hidden;         // [tokens, inputs]
  const uint32_t* packed;  // see above
  const T* bias;           // of all layers, one after the other; or null
  T* const* outputs;       // of each layer, [tokens, its outputs]
  const int64_t* num_outputs;  // of each layer
  int64_t num_tokens, num_inputs, num_layers;

  bool run() const;

  int64_t num_words() const { return padded_words<T>(num_inputs); }

  // What a block of weights computes: `size` outputs of a layer.
  struct Block {
    const uint32_t* weights;
    const T* bias;
    T* output;
    int64_t stride, size;  // from one token's outputs to the next
  };

  std::vector<Block> blocks() const {
    std::vector<Block> blocks;
    int64_t before = 0;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const int64_t size = num_outputs[layer];
      for (int64_t first = 0; first < size; first += BLOCK)
        blocks.push_back(
            {packed + blocks.size() * num_words() * BLOCK, bias ? bias + before + first : nullptr,
             outputs[layer] + first, size, std::min<int64_t>(BLOCK, size - first)});
      before += size;
    }
    return blocks;
  }

  // A vector of a block of one token: adds the bias, rounds, and writes.
  static void finish(const Block& block, int part, int64_t token, Floats sums) {
    using Vector = VectorOf<T>;
    const int64_t count = std::min<int64_t>(LANES, block.size - part * LANES);
    if (count <= 0) return;
    if (block.bias)
      sums += widened(load<Vector>(block.bias + part * LANES, count * sizeof(T)));
    Vector narrowed;
    narrow(sums, narrowed);
    store(block.output + token * block.stride + part * LANES, narrowed, count * sizeof(T));
  }

  void run_in_vectors() const {
    const std::vector<Block> all = blocks();
    const int64_t words = num_inputs * sizeof(T) / 4;
    std::vector<uint32_t> interleaved(num_tokens * words);
#pragma omp parallel if (all.size() > 1)
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
      for (size_t number = 0; number < all.size(); ++number) {
        in_tiles<ROWS>(num_tokens, [&]<int COUNT>(int64_t first) {
          Floats products[COUNT][VECTORS];
          multiply<T>(interleaved.data() + first * words, all[number].weights, words, products);
          for (int token = 0; token < COUNT; ++token)
            for (int part = 0; part < VECTORS; ++part)
              finish(all[number], part, first + token, products[token][part]);
        });
      }
    }
  }
};

#ifdef __AMX_BF16__

inline void run_in_tiles(const Linear<uint16_t>& linear) {
  const auto blocks = linear.blocks();
  const int64_t depth = 2 * linear.num_words();
  std::vector<uint16_t> filled_up;
  const uint16_t* inputs = linear.hidden;
  if (depth != linear.num_inputs) {
    filled_up.resize(linear.num_tokens * depth);
    for (int64_t token = 0; token < linear.num_tokens; ++token)
      std::copy_n(
          linear.hidden + token * linear.num_inputs, linear.num_inputs,
          filled_up.data() + token * depth);
    inputs = filled_up.data();
  }
#pragma omp parallel
  {
    Tiles tiles;
    alignas(64) float sums[Tiles::ROWS * BLOCK];
#pragma omp for
    for (size_t number = 0; number < blocks.size(); ++number) {
      for (int64_t token = 0; token < linear.num_tokens; token += Tiles::ROWS) {
        const int64_t count = std::min(Tiles::ROWS, linear.num_tokens - token);
        tiles.multiply(
            inputs + token * depth, depth, count, blocks[number].weights, depth, sums, BLOCK);
        for (int64_t row = 0; row < count; ++row)
          for (int part = 0; part < VECTORS; ++part)
            linear.finish(
                blocks[number], part, token + row, load<Floats>(sums + row * BLOCK + part * LANES));
      }
    }
  }
}

#endif

template <typename T>
bool Linear<T>::run() const {
#ifdef __AMX_BF16__
  if constexpr (sizeof(T) == 2)
    if (has_tiles()) return run_in_tiles(*this), true;
#endif
  run_in_vectors();
  return true;
}

}  // namespace

KERNEL(pack, Pack)
KERNEL(linear, Linear)

extern "C" bool uses_tiles() { return has_tiles(); }
