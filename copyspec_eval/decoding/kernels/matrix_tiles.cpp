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
  static constexpr int TOKENS = 16;
  static constexpr int INPUTS = 32;     // of a tile
  static constexpr int64_t AT_ONCE = 16;  // tiles of inputs for which weights stay in the first cache

  Linear<uint16_t> linear;
  int64_t num_steps() const { return linear.num_words() / LANES; }

  // Inputs as [groups of TOKENS][steps][TOKENS][INPUTS], filled up with zeros.
  void arrange(std::vector<uint16_t>& tiles, int64_t group) const {
    const int64_t first = group * TOKENS;
    const int64_t count = std::min<int64_t>(TOKENS, linear.num_tokens - first);
    for (int64_t token = 0; token < count; ++token) {
      const uint16_t* from = linear.hidden + (first + token) * linear.num_inputs;
      uint16_t* to = tiles.data() + (group * num_steps() * TOKENS + token) * INPUTS;
      for (int64_t step = 0; step < num_steps(); ++step) {
        const int64_t left = std::min<int64_t>(INPUTS, linear.num_inputs - step * INPUTS);
        std::memcpy(to + step * TOKENS * INPUTS, from + step * INPUTS, left * 2);
      }
    }
  }

  // Sums of up to 32 tokens and a block of weights, over steps `begin` to `end`.
  void multiply(
      const uint16_t* tiles, const uint32_t* weights, int64_t begin, int64_t end, bool has_second,
      float* sums) const {
    const uint16_t* second = tiles + num_steps() * TOKENS * INPUTS;
    constexpr int bytes = 2 * LANES * 4;  // from a token's sums to the next one's
    float* second_sums = sums + TOKENS * BLOCK;
    if (begin == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, sums, bytes);
      _tile_loadd(1, sums + LANES, bytes);
      if (has_second) {
        _tile_loadd(2, second_sums, bytes);
        _tile_loadd(3, second_sums + LANES, bytes);
      }
    }
    for (int64_t step = begin; step < end; ++step) {
      const uint32_t* words = weights + step * LANES * BLOCK;
      _tile_loadd(4, tiles + step * TOKENS * INPUTS, INPUTS * 2);
      _tile_loadd(6, words, BLOCK * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, words + LANES, BLOCK * 4);
      _tile_dpbf16ps(1, 4, 7);
      if (has_second) {
        _tile_loadd(5, second + step * TOKENS * INPUTS, INPUTS * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + LANES, bytes);
    if (has_second) {
      _tile_stored(2, second_sums, bytes);
      _tile_stored(3, second_sums + LANES, bytes);
    }
  }

  void run_block(
      const Linear<uint16_t>::Block& block, const std::vector<uint16_t>& tiles,
      std::vector<float>& sums, int64_t (&configured)[2]) const {
    const int64_t num_tokens = linear.num_tokens;
    const int64_t at_once = num_tokens > 4 * TOKENS ? AT_ONCE : num_steps();
    for (int64_t begin = 0; begin < num_steps(); begin += at_once) {
      for (int64_t token = 0; token < num_tokens; token += 2 * TOKENS) {
        const int64_t first = std::min<int64_t>(TOKENS, num_tokens - token);
        const int64_t second = std::clamp<int64_t>(num_tokens - token - TOKENS, 0, TOKENS);
        if (configured[0] != first || configured[1] != second) {
          configure(first, second);
          configured[0] = first, configured[1] = second;
        }
        multiply(
            tiles.data() + token * num_steps() * INPUTS, block.weights, begin,
            std::min(begin + at_once, num_steps()), second > 0, sums.data() + token * BLOCK);
      }
    }
    for (int64_t token = 0; token < num_tokens; ++token)
      for (int part = 0; part < VECTORS; ++part)
        linear.finish(
            block, part, token, load<Floats>(sums.data() + token * BLOCK + part * LANES));
  }

  void run() const {
    const auto blocks = linear.blocks();
    const int64_t groups = (linear.num_tokens + TOKENS - 1) / TOKENS;
    std::vector<uint16_t> tiles(groups * num_steps() * TOKENS * INPUTS);
#pragma omp parallel
    {
#pragma omp for
      for (int64_t group = 0; group < groups; ++group) arrange(tiles, group);
      static thread_local std::vector<float> sums;
      sums.resize(groups * TOKENS * BLOCK);
      int64_t configured[2] = {};
#pragma omp for
      for (size_t number = 0; number < blocks.size(); ++number)
        run_block(blocks[number], tiles, sums, configured);
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
