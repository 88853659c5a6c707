// Linear layers in bfloat16 or float32; of a few tokens, as fast as memory gives their weights.
//
// Each output is summed over the inputs in their order: a token's bits do not depend on the tokens
// beside it. Sums are in float32.

namespace {

constexpr int TOKENS = 12;  // at a time

// `packed` is [blocks of outputs][words of inputs][BLOCK].
template <typename T>
void pack(const T* weight, int64_t num_outputs, int64_t num_inputs, uint32_t* packed) {
  const int64_t size = num_inputs * sizeof(T) / 4 * BLOCK;
#pragma omp parallel for
  for (int64_t block = 0; block < (num_outputs + BLOCK - 1) / BLOCK; ++block)
    transpose(
        weight + block * BLOCK * num_inputs, num_inputs, num_outputs - block * BLOCK, num_inputs,
        packed + block * size);
}

template <typename T>
void linear(
    const T* hidden, const uint32_t* packed, const T* bias, T* output, int64_t num_tokens,
    int64_t num_outputs, int64_t num_inputs) {
  using Vector = typename Of<T>::Vector;
  const int64_t num_words = num_inputs * sizeof(T) / 4;
  std::vector<uint32_t> interleaved(num_tokens * num_words);
  in_tiles<TOKENS>(num_tokens, [&]<int COUNT>(int64_t first) {
    for (int token = 0; token < COUNT; ++token)
      interleave(
          hidden + (first + token) * num_inputs, num_inputs, COUNT,
          interleaved.data() + first * num_words + token);
  });
#pragma omp parallel for
  for (int64_t block = 0; block < (num_outputs + BLOCK - 1) / BLOCK; ++block) {
    in_tiles<TOKENS>(num_tokens, [&]<int COUNT>(int64_t first) {
      Floats products[COUNT][2];
      multiply<T>(
          interleaved.data() + first * num_words, packed + block * num_words * BLOCK, num_words,
          products);
      for (int part = 0; part < 2; ++part) {
        const int64_t begin = block * BLOCK + part * LANES;
        const int64_t count = std::min<int64_t>(LANES, num_outputs - begin);
        if (count <= 0) break;
        const Vector added = bias ? load<Vector>(bias + begin, count * sizeof(T)) : Vector{};
        for (int token = 0; token < COUNT; ++token) {
          Vector narrowed;
          narrow(products[token][part] + widened(added), narrowed);
          store(output + (first + token) * num_outputs + begin, narrowed, count * sizeof(T));
        }
      }
    });
  }
}

}  // namespace

#define LINEAR(DTYPE, T)                                                                       \
  extern "C" void pack_##DTYPE(                                                                \
      const T* weight, uint32_t* packed, int64_t num_outputs, int64_t num_inputs) {            \
    pack(weight, num_outputs, num_inputs, packed);                                             \
  }                                                                                            \
  extern "C" void linear_##DTYPE(                                                              \
      const T* hidden, const uint32_t* packed, const T* bias, T* output, int64_t num_tokens,   \
      int64_t num_outputs, int64_t num_inputs) {                                               \
    linear(hidden, packed, bias, output, num_tokens, num_outputs, num_inputs);                 \
  }
LINEAR(bfloat16, uint16_t)
LINEAR(float32, float)
