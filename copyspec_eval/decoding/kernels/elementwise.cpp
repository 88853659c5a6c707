// What stands between a model's linear layers: norms, rotary embeddings and gates, in bfloat16 or
// float32, each in one pass. They round where the models' own code rounds.

namespace {

constexpr int64_t PER_THREAD = 1 << 14;  // elements, below which a second thread costs more

template <typename Function>
inline void each_vector(int64_t size, const Function& function) {
  for (int64_t at = 0; at < size; at += LANES)
    function(at, sizeof(Element) * std::min<int64_t>(LANES, size - at));
}

inline Floats rounded(Floats floats) {
  Elements narrowed;
  narrow(floats, narrowed);
  return widened(narrowed);
}

struct Norm {
  const Element* input;       // [rows, size]
  const float* weight;  // [size]
  Element* output;
  int64_t num_rows, size;
  double epsilon;
  int64_t rounds_first;  // the quotient, before the product with the weight

  bool run() const {
#pragma omp parallel for if (num_rows * size > PER_THREAD)
    for (int64_t row = 0; row < num_rows; ++row) {
      const Element* from = input + row * size;
      Floats sums = {};
      each_vector(size, [&](int64_t at, size_t bytes) {
        const Floats values = read(from + at, bytes);
        sums = multiply_add(values, values, sums);
      });
      const float square = reduced(sums, [](float a, float b) { return a + b; });
      const float factor = 1.0f / std::sqrt(square / size + float(epsilon));
      each_vector(size, [&](int64_t at, size_t bytes) {
        Floats values = read(from + at, bytes) * factor;
        if (rounds_first) values = rounded(values);
        const size_t count = bytes / sizeof(Element) * sizeof(float);
        write(output + row * size + at, values * load<Floats>(weight + at, count), bytes);
      });
    }
    return true;
  }
};

// Rotates the halves of heads.
struct Rotation {
  const Element *input, *cosines, *sines;  // [rows, heads, tokens, dim], [rows or 1, tokens, dim]
  Element* output;
  int64_t rows, heads, tokens, dim, row_stride, head_stride, token_stride, num_angles;

  bool run() const {
    const int64_t half = dim / 2;
#pragma omp parallel for collapse(2) if (rows * tokens * heads * dim > PER_THREAD)
    for (int64_t row_and_head = 0; row_and_head < rows * heads; ++row_and_head) {
      for (int64_t token = 0; token < tokens; ++token) {
        const int64_t row = row_and_head / heads, head = row_and_head % heads;
        const Element* from = input + row * row_stride + head * head_stride + token * token_stride;
        const int64_t angle = ((num_angles > 1 ? row * tokens : 0) + token) * dim;
        Element* to = output + (row_and_head * tokens + token) * dim;
        each_vector(half, [&](int64_t at, size_t bytes) {
          const Floats first = read(from + at, bytes), second = read(from + half + at, bytes);
          const auto turned = [&](Floats straight, Floats across, int64_t place) {
            return rounded(straight * read(cosines + angle + place, bytes)) +
                rounded(across * read(sines + angle + place, bytes));
          };
          write(to + at, turned(first, -second, at), bytes);
          write(to + half + at, turned(second, first, half + at), bytes);
        });
      }
    }
    return true;
  }
};

inline Floats silu(Floats x) {
  const Floats power = exponential(x < 0.0f ? x : -x);
  return x * ((x < 0.0f ? power : Floats{} + 1.0f) / (1.0f + power));
}

inline Floats gelu_tanh(Floats x) {
  const Floats cube = x * x * x;
  const Floats inner = 0.7978845608f * multiply_add(cube, Floats{} + 0.044715f, x);
  return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

// activation(gates) * up
struct Gate {
  const Element* gates;  // [rows, 2 * size]: of each row, gates and up
  Element* output;       // [rows, size]
  int64_t num_rows, size, is_silu;

  bool run() const {
#pragma omp parallel for if (num_rows * size > PER_THREAD)
    for (int64_t row = 0; row < num_rows; ++row) {
      const Element *from = gates + row * 2 * size, *up = from + size;
      each_vector(size, [&](int64_t at, size_t bytes) {
        const Floats input = read(from + at, bytes);
        const Floats activated = rounded(is_silu ? silu(input) : gelu_tanh(input));
        write(output + row * size + at, activated * read(up + at, bytes), bytes);
      });
    }
    return true;
  }
};

}  // namespace

KERNEL(rms_norm, Norm)
KERNEL(rotate, Rotation)
KERNEL(gate, Gate)
