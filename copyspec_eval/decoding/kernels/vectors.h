// Vectors as wide as the processor's; compiled in front of the kernels, for BFLOAT16 or float32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
constexpr int ROWS = 12;  // at a time, whose sums of a block fit into the registers
#else
constexpr int LANES = 8;
constexpr int ROWS = 3;
#endif
constexpr int BLOCK = 32;  // keys, or outputs of a linear layer, at a time
constexpr int VECTORS = BLOCK / LANES;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

// The first `size` bytes of a vector, at most all; what is behind them is zero. A whole vector is an
// instruction, the rest a call, for which it has to lie in memory.
template <typename Vector>
inline Vector load(const void* from, size_t size = sizeof(Vector)) {
  if (size < sizeof(Vector)) {
    Vector part{};
    std::memcpy(&part, from, size);
    return part;
  }
  Vector vector;
  std::memcpy(&vector, from, sizeof(Vector));
  return vector;
}

template <typename Vector>
inline void store(void* to, Vector vector, size_t size = sizeof(Vector)) {
  if (size < sizeof(Vector)) {
    const Vector part = vector;
    std::memcpy(to, &part, size);
    return;
  }
  std::memcpy(to, &vector, sizeof(Vector));
}

// A bfloat16, here a uint16_t, is the upper half of a float32.
inline Floats widened(Halves halves) {
#ifdef __AVX512F__  // which the compiler would do by halves
  return (Floats)((Words)_mm512_cvtepu16_epi32((__m256i)halves) << 16);
#else
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}
inline Floats widened(Floats floats) { return floats; }

inline void narrow(Floats floats, Floats& to) { to = floats; }
inline void narrow(Floats floats, Halves& to) {
#ifdef __AVX512BF16__
  to = (Halves)_mm512_cvtneps_pbh((__m512)floats);
#else
  const Words words = (Words)floats;
  const Words nearest = words + 0x7fff + ((words >> 16) & 1);  // ties to even
  const Words rounded = floats != floats ? Words{} + 0x7fc00000 : nearest;
  to = __builtin_convertvector(rounded >> 16, Halves);
#endif
}

#ifdef BFLOAT16
typedef uint16_t Element;
#else
typedef float Element;
#endif
template <typename T>
using VectorOf = std::conditional_t<sizeof(T) == 4, Floats, Halves>;
using Elements = VectorOf<Element>;

// The first `size` bytes of a vector of values, as of `load`.
inline Floats read(const Element* from, size_t size = sizeof(Elements)) {
  return widened(load<Elements>(from, size));
}

inline void write(Element* to, Floats floats, size_t size = sizeof(Elements)) {
  Elements narrowed;
  narrow(floats, narrowed);
  store(to, narrowed, size);
}

inline Words shuffled(Words first, Words second, Words lanes) {
#ifdef __clang__
  Words result;
  for (int lane = 0; lane < LANES; ++lane)
    result[lane] = lanes[lane] < LANES ? first[lanes[lane]] : second[lanes[lane] - LANES];
  return result;
#else
  return __builtin_shuffle(first, second, lanes);
#endif
}

// Exchanges squares of SIZE x SIZE words across the diagonals of squares twice as wide.
template <int SIZE>
inline void exchange(Words (&rows)[LANES]) {
  Words upper{}, lower{};
  for (int lane = 0; lane < LANES; ++lane) {
    upper[lane] = lane & SIZE ? LANES + lane - SIZE : lane;
    lower[lane] = lane & SIZE ? LANES + lane : lane + SIZE;
  }
  for (int row = 0; row < LANES; ++row) {
    if (row & SIZE) continue;
    const Words first = rows[row], second = rows[row + SIZE];
    rows[row] = shuffled(first, second, upper);
    rows[row + SIZE] = shuffled(first, second, lower);
  }
}

inline void exchange_all(Words (&rows)[LANES]) {
  if constexpr (LANES == 16) exchange<8>(rows);
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// A block of rows, [BLOCK, length], as [words][BLOCK]; a word is a float32, or two bfloat16. Rows
// after the first `num_rows` are zero.
void transpose(const Element* from, int64_t stride, int64_t num_rows, int64_t length, uint32_t* to) {
  const int64_t num_words = length * sizeof(Element) / 4;
  for (int64_t first_row = 0; first_row < BLOCK; first_row += LANES) {
    for (int64_t first = 0; first < num_words; first += LANES) {
      const int64_t count = std::min<int64_t>(LANES, num_words - first);
      Words square[LANES];
      for (int64_t row = 0; row < LANES; ++row) {
        const Element* words = from + (first_row + row) * stride + first * (4 / sizeof(Element));
        square[row] =
            first_row + row < num_rows ? load<Words>(words, 4 * count) : Words{};
      }
      exchange_all(square);
      for (int64_t word = 0; word < count; ++word)
        store(to + (first + word) * BLOCK + first_row, square[word]);
    }
  }
}

// How many words `interleave` makes of one: where a processor does not multiply bfloat16, each half
// becomes a float32.
#if defined(BFLOAT16) && !defined(__AVX512BF16__)
constexpr int HALVES = 2;
#else
constexpr int HALVES = 1;
#endif

// Words that `interleave` makes of a row.
constexpr int64_t words_in(int64_t length) {
  return length * sizeof(Element) / 4 * HALVES;
}

// A row of words where those of `count` rows alternate.
inline void interleave(const Element* row, int64_t length, int64_t count, uint32_t* to) {
  for (int64_t at = 0; at < words_in(length); ++at) {
    if constexpr (HALVES == 2)
      to[at * count] = uint32_t(row[at]) << 16;
    else
      std::memcpy(to + at * count, row + at * (4 / sizeof(Element)), 4);
  }
}

// a * b + c in one rounding where the processor can, else in two: never as the compiler likes.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int lane = 0; lane < LANES; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return c;
#else
  return a * b + c;
#endif
}

inline Floats add_products(Floats sums, Words first, Words second) {
#if defined(BFLOAT16) && defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)first, (__m512bh)second);
#else
  return multiply_add((Floats)first, (Floats)second, sums);
#endif
}

// Fetches what is read soon. By itself, a processor stops at the end of each page of memory.
template <typename T>
inline void prefetch(const T* from, int64_t length) {
  for (int64_t at = 0; at < length; at += 64 / sizeof(T)) __builtin_prefetch(from + at);
}

// Products of COUNT rows, as of `interleave`, and a block, as of `transpose`; blocks that follow each
// other in memory are fetched AHEAD words before they are read.
template <int COUNT, int AHEAD = 0>
inline void multiply(
    const uint32_t* rows, const uint32_t* block, int64_t num_words,
    Floats (&products)[COUNT][VECTORS]) {
  for (int row = 0; row < COUNT; ++row)
    for (int part = 0; part < VECTORS; ++part) products[row][part] = Floats{};
  for (int64_t word = 0; word < num_words; ++word) {
    if constexpr (AHEAD > 0) prefetch(block + (word + AHEAD) * BLOCK, BLOCK);
    // Unrolled, the sums stay in registers, and beside them the factors or columns that are fewer.
#pragma GCC unroll 2
    for (int half = 0; half < HALVES; ++half) {
      const auto column = [&](int part) {
        const Words words = load<Words>(block + word * BLOCK + part * LANES);
        return HALVES == 1 ? words : half ? words & 0xffff0000 : words << 16;
      };
      if constexpr (COUNT < VECTORS) {
        Words factors[COUNT];
        for (int row = 0; row < COUNT; ++row)
          factors[row] = Words{} + rows[(word * HALVES + half) * COUNT + row];
#pragma GCC unroll 4
        for (int part = 0; part < VECTORS; ++part) {
          const Words words = column(part);
#pragma GCC unroll 16
          for (int row = 0; row < COUNT; ++row)
            products[row][part] = add_products(products[row][part], factors[row], words);
        }
        continue;
      }
      Words columns[VECTORS];
      for (int part = 0; part < VECTORS; ++part) columns[part] = column(part);
#pragma GCC unroll 16
      for (int row = 0; row < COUNT; ++row) {
        const Words factor = Words{} + rows[(word * HALVES + half) * COUNT + row];
#pragma GCC unroll 4
        for (int part = 0; part < VECTORS; ++part)
          products[row][part] = add_products(products[row][part], factor, columns[part]);
      }
    }
  }
}

// The larger of each two, or the second where one is NaN.
inline Floats larger(Floats first, Floats second) {
#ifdef __AVX512F__
  return (Floats)_mm512_max_ps((__m512)first, (__m512)second);
#else
  return first > second ? first : second;
#endif
}

// The sum of factors by powers of x, of which the last is 1.
template <size_t COUNT>
inline Floats polynomial(Floats x, const float (&factors)[COUNT]) {
  Floats result = Floats{} + factors[0];
  for (size_t at = 1; at < COUNT; ++at) result = multiply_add(result, x, Floats{} + factors[at]);
  return result;
}

template <typename Vector, typename Reduce>
inline auto reduced(Vector vector, Reduce reduce) {
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      vector[lane] = reduce(vector[lane], vector[lane + half]);
  return vector[0];
}

// e^x of x <= 0, 0 where that is smaller than normal numbers: to about one unit in the last place, or
// to one part in 2^18 if it will be rounded to bfloat16.
template <typename Rounded = float>
inline Floats exponential(Floats x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: floats are whole numbers there
  constexpr float smallest = -87.0f;
  const Floats bounded = larger(Floats{} + smallest, x);
  const Floats shifted = multiply_add(bounded, Floats{} + 1.44269504f, Floats{} + magic);
  const Floats power = shifted - magic;
  Floats rest, result;
  if constexpr (sizeof(Rounded) == 4) {
    rest = multiply_add(power, Floats{} - 0.693359375f, bounded);
    rest = multiply_add(power, Floats{} + 2.12194440e-4f, rest);
    result = polynomial(rest, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f});
    result = multiply_add(result, rest * rest, rest) + 1.0f;
  } else {
    rest = multiply_add(power, Floats{} - 0.69314718f, bounded);
    result = polynomial(rest, {0.04151374f, 0.1678747f, 0.50003014f, 0.99996684f, 1.0f});
  }
#ifdef __AVX512F__
  const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, (__m512)(Floats{} + smallest), _CMP_NLE_UQ);
  return (Floats)_mm512_maskz_scalef_ps(counts, (__m512)result, (__m512)power);
#else
  const Floats scaled = (Floats)((Ints)result + ((Ints)shifted << 23));
  return x != x ? x : x > smallest ? scaled : Floats{};
#endif
}

// tanh, to about one unit in the last place of 1.
inline Floats hyperbolic_tangent(Floats x) {
  const Floats power = exponential(-2.0f * (x < 0.0f ? -x : x));
  const Floats result = (1.0f - power) / (1.0f + power);
  return x < 0.0f ? -result : result;
}

// Calls function.operator()<COUNT>(first) for `total` rows, at most MOST at a time.
template <int MOST, typename Function>
inline void in_tiles(int64_t total, const Function& function) {
  int64_t first = 0;
  for (; first + MOST <= total; first += MOST) function.template operator()<MOST>(first);
  if constexpr (MOST > 1)
    in_tiles<MOST - 1>(total - first, [&]<int COUNT>(int64_t row) {
      function.template operator()<COUNT>(first + row);
    });
}

}  // namespace

// A kernel gets a struct of words of 64 bits; gives whether indices are in range.
#define KERNEL(NAME, STRUCT) \
  extern "C" bool NAME(const STRUCT& given) { return given.run(); }
