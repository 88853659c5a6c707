// Matrix products in bfloat16 by AMX, the matrix tiles of recent Intel processors. A tile multiplies
// 16 rows at once, each in the same order of sums: a row's bits do not depend on those beside it.

#if defined(MAY_USE_TILES) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HAS_TILES

namespace {

// A thread's tiles. 0 to 3 are sums, [rows][16]; 4 and 5 rows, [rows][DEPTH]; 6 and 7 of a block,
// [DEPTH / 2][16 columns] of pairs. The rows are up to 16 of a first group, and up to 16 of a second.
class Tiles {
 public:
  static constexpr int64_t ROWS = 32, DEPTH = 32;  // at a time

  static int64_t padded(int64_t size) { return (size + DEPTH - 1) / DEPTH * DEPTH; }

  // Rows of `length`, filled up with zeros to a multiple of DEPTH.
  static std::vector<uint16_t> filled_up(
      const uint16_t* rows, int64_t stride, int64_t num_rows, int64_t length) {
    std::vector<uint16_t> filled(num_rows * padded(length));
    for (int64_t row = 0; row < num_rows; ++row)
      std::copy_n(rows + row * stride, length, filled.data() + row * padded(length));
    return filled;
  }

  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (first_) _tile_release();
  }

  // Sums over `depth`, a multiple of DEPTH, of products of up to ROWS rows and a block of words,
  // [depth / 2][BLOCK]; as [rows][BLOCK]. Strides are in elements. Blocks that follow each other in
  // memory are fetched AHEAD words before they are read.
  template <int AHEAD = 0>
  void multiply(
      const uint16_t* rows, int64_t stride, int64_t num_rows, const uint32_t* block, int64_t depth,
      float* sums, int64_t sums_stride) {
    configure(std::min<int64_t>(16, num_rows), std::max<int64_t>(0, num_rows - 16));
    const uint16_t* second = rows + 16 * stride;
    const int64_t bytes = stride * 2;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; at < depth; at += DEPTH) {
      const uint32_t* words = block + at / 2 * BLOCK;
      for (int word = 0; word < (AHEAD ? DEPTH / 2 : 0); ++word)
        prefetch(words + (word + AHEAD) * BLOCK, BLOCK);
      _tile_loadd(4, rows + at, bytes);
      _tile_loadd(6, words, BLOCK * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, words + 16, BLOCK * 4);
      _tile_dpbf16ps(1, 4, 7);
      if (second_) {
        _tile_loadd(5, second + at, bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, sums_stride * 4);
    _tile_stored(1, sums + 16, sums_stride * 4);
    if (second_) {
      _tile_stored(2, sums + 16 * sums_stride, sums_stride * 4);
      _tile_stored(3, sums + 16 * sums_stride + 16, sums_stride * 4);
    }
  }

 private:
  int64_t first_ = 0, second_ = 0;  // rows that they are configured for

  void configure(int64_t first, int64_t second) {
    if (first == first_ && second == second_) return;
    first_ = first, second_ = second;
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
};

}  // namespace

#endif
