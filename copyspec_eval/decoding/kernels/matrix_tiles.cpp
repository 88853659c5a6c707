// Linear layers in bfloat16 by AMX, the matrix tiles of recent Intel processors; in front of it, the
// choice between them and vectors. A tile multiplies 16 tokens at once, each in the same order of
// sums, so that here, too, a token's bits do not depend on the tokens beside it.

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#ifdef __AMX_BF16__

// Whether the system lets this process use tiles.
inline bool has_tiles() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool granted =
      syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return granted;
}

// Tiles 0 to 3 are sums, [tokens][LANES]; 4 and 5 inputs, [tokens][32]; 6 and 7 weights. The tokens
// are up to 16 of a first group, and up to 16 of a second.
inline void configure(int64_t first, int64_t second) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; ++tile) config.bytes_per_row[tile] = 64;
  for (const int tile : {0, 1, 4}) config.rows[tile] = first;
  for (const int tile : {2, 3, 5}) config.rows[tile] = std::max<int64_t>(1, second);
  for (const int tile : {6, 7}) config.rows[tile] = 16;
  _tile_loadconfig(&config);
}

struct TileLinear {
  static constexpr int64_t TOKENS = 16, INPUTS = 32;  // of a tile

  Linear<uint16_t> linear;
  int64_t num_padded() const { return 2 * linear.num_words(); }

  // Tokens `first` on, up to 32, and a block of weights: sums as [tokens][BLOCK].
  void multiply(
      const uint16_t* inputs, const uint32_t* weights, bool has_second, float* sums) const {
    const int64_t stride = num_padded() * 2;
    const uint16_t* second = inputs + TOKENS * num_padded();
    constexpr int bytes = BLOCK * 4;  // from a token's sums to the next one's
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t input = 0; input < num_padded(); input += INPUTS) {
      const uint32_t* words = weights + input / 2 * BLOCK;
      _tile_loadd(4, inputs + input, stride);
      _tile_loadd(6, words, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, words + 16, bytes);
      _tile_dpbf16ps(1, 4, 7);
      if (has_second) {
        _tile_loadd(5, second + input, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + 16, bytes);
    if (has_second) {
      _tile_stored(2, sums + TOKENS * BLOCK, bytes);
      _tile_stored(3, sums + TOKENS * BLOCK + 16, bytes);
    }
  }

  void run_block(
      const Linear<uint16_t>::Block& block, const uint16_t* inputs,
      int64_t (&configured)[2]) const {
    alignas(64) float sums[2 * TOKENS * BLOCK];
    for (int64_t token = 0; token < linear.num_tokens; token += 2 * TOKENS) {
      const int64_t left = linear.num_tokens - token;
      const int64_t first = std::min(TOKENS, left);
      const int64_t second = std::clamp<int64_t>(left - TOKENS, 0, TOKENS);
      if (configured[0] != first || configured[1] != second) {
        configure(first, second);
        configured[0] = first, configured[1] = second;
      }
      multiply(inputs + token * num_padded(), block.weights, second > 0, sums);
      for (int64_t row = 0; row < first + second; ++row)
        for (int part = 0; part < VECTORS; ++part)
          linear.finish(block, part, token + row, load<Floats>(sums + row * BLOCK + part * LANES));
    }
  }

  void run() const {
    const auto blocks = linear.blocks();
    std::vector<uint16_t> filled_up;
    const uint16_t* inputs = linear.hidden;
    if (num_padded() != linear.num_inputs) {
      filled_up.resize(linear.num_tokens * num_padded());
      for (int64_t token = 0; token < linear.num_tokens; ++token)
        std::copy_n(
            linear.hidden + token * linear.num_inputs, linear.num_inputs,
            filled_up.data() + token * num_padded());
      inputs = filled_up.data();
    }
#pragma omp parallel
    {
      int64_t configured[2] = {};
#pragma omp for
      for (size_t number = 0; number < blocks.size(); ++number)
        run_block(blocks[number], inputs, configured);
      if (configured[0]) _tile_release();
    }
  }
};

inline void run(const Linear<uint16_t>& linear) {
  if (has_tiles())
    TileLinear{linear}.run();
  else
    linear.run();
}

#else

inline bool has_tiles() { return false; }
inline void run(const Linear<uint16_t>& linear) { linear.run(); }

#endif

}  // namespace

extern "C" void linear_bfloat16(
    const uint16_t* hidden, const uint32_t* packed, const uint16_t* bias, uint16_t* const* outputs,
    int64_t num_tokens, int64_t num_inputs, int64_t num_layers, const int64_t* num_outputs) {
  run({hidden, packed, bias, outputs, num_tokens, num_inputs, num_layers, num_outputs});
}

extern "C" bool uses_tiles() { return has_tiles(); }
