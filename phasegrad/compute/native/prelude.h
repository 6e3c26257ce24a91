/* What every generated program starts with: vector arithmetic that the compiler can unroll for known sizes.
 * No header of torch is needed, so a program compiles in about a second. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32), aligned(4)));
#define LANES 8
#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* e^x to about 1e-7 relative: x = n ln 2 + f, a Taylor series for e^f, and n put in the exponent's bits. */
ALWAYS float exp_(float x) {
    float bounded = x > 88.0f ? 88.0f : x;
    bounded = bounded < -87.0f ? -87.0f : bounded;
    float shifted = bounded * 1.44269504f + 12582912.0f; /* adding 1.5 2^23 rounds to a whole number */
    float n = shifted - 12582912.0f;
    float f = bounded - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    float sum = 1.98412698e-4f;
    sum = sum * f + 1.38888889e-3f;
    sum = sum * f + 8.33333333e-3f;
    sum = sum * f + 4.16666667e-2f;
    sum = sum * f + 1.66666667e-1f;
    sum = sum * f + 0.5f;
    sum = sum * f + 1.0f;
    sum = sum * f + 1.0f;
    union { float number; int32_t bits; } power;
    power.number = shifted;
    power.bits = (power.bits - 0x4B400000 + 127) << 23;
    float result = sum * power.number;
    result = x > 88.0f ? INFINITY : result;
    return x < -87.0f ? 0.0f : result;
}

/* tanh: an odd series near 0, where 1 - e^-2|x| would cancel, and exponentials elsewhere. */
ALWAYS float tanh_(float x) {
    float size = x < 0.0f ? -x : x;
    float square = x * x;
    float near = -1.45583438e-3f;
    near = near * square + 3.59212804e-3f;
    near = near * square + -8.86323553e-3f;
    near = near * square + 2.18694885e-2f;
    near = near * square + -5.39682540e-2f;
    near = near * square + 1.33333333e-1f;
    near = near * square + -3.33333333e-1f;
    near = x + x * square * near;
    float fall = exp_(-2.0f * size);
    float far = (1.0f - fall) / (1.0f + fall);
    far = x < 0.0f ? -far : far;
    return size < 0.4f ? near : far;
}

ALWAYS float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }
ALWAYS float log_sigmoid_(float x) { return (x < 0.0f ? x : 0.0f) - log1pf(expf(x < 0.0f ? x : -x)); }
ALWAYS float softplus_(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* e^x - 1: a Taylor series near 0, where the difference would cancel. */
ALWAYS float expm1_(float x) {
    float near = 2.48015873e-5f;
    near = near * x + 1.98412698e-4f;
    near = near * x + 1.38888889e-3f;
    near = near * x + 8.33333333e-3f;
    near = near * x + 4.16666667e-2f;
    near = near * x + 1.66666667e-1f;
    near = near * x + 0.5f;
    near = x + x * x * near;
    float far = exp_(x) - 1.0f;
    return x < 0.5f && x > -0.5f ? near : far;
}

/* log(1 + x): 1 + x = 2^n m with m near 1, a series in (m - 1) / (m + 1), and what rounding 1 + x has lost. */
ALWAYS float log1p_(float x) {
    float whole = 1.0f + x;
    union { float number; int32_t bits; } split;
    split.number = whole;
    int32_t n = (split.bits - 0x3F3504F3) >> 23; /* the bits of the root of 1/2 */
    split.bits -= n << 23;
    float s = (split.number - 1.0f) / (split.number + 1.0f);
    float square = s * s;
    float sum = 2.22222222e-1f;
    sum = sum * square + 2.85714286e-1f;
    sum = sum * square + 0.4f;
    sum = sum * square + 6.66666667e-1f;
    sum = s * 2.0f + s * square * sum;
    float lost = (x - (whole - 1.0f)) / whole;
    float result = n * 0.693359375f + (sum + (lost - n * 2.12194440e-4f));
    result = whole > 0.0f ? result : whole < 0.0f ? NAN : -INFINITY;
    return x < 3.0e38f ? result : x; /* infinity, and what is no number, stay */
}

/* erf: an odd series near 0, elsewhere 1 - e^-x^2 times a polynomial in 1 / (1 + x / 2), fitted to the scaled erfc. */
ALWAYS float erf_(float x) {
    float size = x < 0.0f ? -x : x;
    float square = x * x;
    float near = 1.19999e-4f;
    near = near * square + -8.54833e-4f;
    near = near * square + 5.22397754e-3f;
    near = near * square + -2.68661706e-2f;
    near = near * square + 1.12837917e-1f;
    near = near * square + -3.76126389e-1f;
    near = x * 1.12837917f + x * square * near;
    float bounded = size > 4.2f ? 4.2f : size;
    float t = 1.0f / (1.0f + 0.5f * bounded);
    float sum = 1.099564435e-1f;
    sum = sum * t + -4.361229559e-1f;
    sum = sum * t + 5.078679960e-1f;
    sum = sum * t + -5.566769413e-2f;
    sum = sum * t + 3.232606094e-1f;
    sum = sum * t + 2.671162394e-1f;
    sum = sum * t + 2.836817206e-1f;
    sum = sum * t + -6.808005497e-5f;
    float far = 1.0f - exp_(-bounded * bounded) * sum;
    far = x < 0.0f ? -far : far;
    return x != x ? x : size < 0.5f ? near : far;
}

/* rows x (8 columns) tile of C = A B (+ bias), B with unit column stride; sums stay in registers. */
ALWAYS void tile(int rows, int columns, int K, const float *A, int a0, int a1, const float *B, int b0, float *C, int c0,
                 const float *bias, int width) {
    vec sums[6][2];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++) {
            sums[i][j] = (vec){0};
            if (bias) for (int l = 0; l < LANES; l++) sums[i][j][l] = j * LANES + l < width ? bias[j * LANES + l] : 0.0f;
        }
    for (int k = 0; k < K; k++) {
        vec right[2];
        UNROLL for (int j = 0; j < columns; j++) right[j] = *(const vec *)(B + (long)k * b0 + j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            float left = A[(long)i * a0 + (long)k * a1];
            UNROLL for (int j = 0; j < columns; j++) sums[i][j] += left * right[j];
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++) {
            float *place = C + (long)i * c0 + j * LANES;
            if ((j + 1) * LANES <= width) *(vec *)place = sums[i][j];
            else for (int l = 0; l < width - j * LANES; l++) place[l] = sums[i][j][l];
        }
}

ALWAYS void strip(int columns, int width, int M, int K, const float *A, int a0, int a1, const float *B, int b0,
                  float *C, int c0, const float *bias) {
    int i = 0;
    for (; i + 6 <= M; i += 6) tile(6, columns, K, A + (long)i * a0, a0, a1, B, b0, C + (long)i * c0, c0, bias, width);
    for (; i + 2 <= M; i += 2) tile(2, columns, K, A + (long)i * a0, a0, a1, B, b0, C + (long)i * c0, c0, bias, width);
    for (; i < M; i++) tile(1, columns, K, A + (long)i * a0, a0, a1, B, b0, C + (long)i * c0, c0, bias, width);
}

/* C [M, N] = A [M, K] B [K, N] (+ bias [N]); `packed` has room for B with N rounded up to whole vectors.
 * One copy for all sizes: specialising it for each product makes compiling slow and running no faster. */
static __attribute__((noinline)) void product(int M, int N, int K, const float *A, int a0, int a1, const float *B, int b0, int b1, float *C, int c0,
                    const float *bias, float *restrict packed) {
    int padded = (N + LANES - 1) / LANES * LANES;
    if (b1 != 1 || padded != N) {
        for (int k = 0; k < K; k++) {
            for (int n = 0; n < N; n++) packed[(long)k * padded + n] = B[(long)k * b0 + (long)n * b1];
            for (int n = N; n < padded; n++) packed[(long)k * padded + n] = 0.0f;
        }
        B = packed;
        b0 = padded;
    }
    int n = 0;
    for (; n + 2 * LANES <= N; n += 2 * LANES)
        strip(2, 2 * LANES, M, K, A, a0, a1, B + n, b0, C + n, c0, bias ? bias + n : 0);
    for (; n < N; n += LANES)
        strip(1, N - n < LANES ? N - n : LANES, M, K, A, a0, a1, B + n, b0, C + n, c0, bias ? bias + n : 0);
}

ALWAYS void softmax_row(int n, const float *x, int stride, float *out, int log) {
    float top = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++) top = x[(long)i * stride] > top ? x[(long)i * stride] : top;
    for (int i = 0; i < n; i++) { out[i] = exp_(x[(long)i * stride] - top); sum += out[i]; }
    if (log) { float shift = top + logf(sum); for (int i = 0; i < n; i++) out[i] = x[(long)i * stride] - shift; }
    else { float scale = 1.0f / sum; for (int i = 0; i < n; i++) out[i] *= scale; }
}

/* One optimiser's share of the flat parameters. */
struct group {
    int64_t start, length;
    float *first, *second, *steps; /* RMSProp keeps its mean square in `second` and counts no steps */
    double rate, eps, alpha, longest;
    int64_t kind; /* 0 Adam, 1 RMSProp, 2 RMSProp with epsilon inside the root */
};

static float norm_of(const float *g, int64_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += g[i] * g[i];
    return sqrtf(sum);
}

/* Clips the group's gradient by its own norm, moves its parameters, returns the norm before clipping. */
static float move_group(const struct group *at, float *restrict parameters, const float *restrict gradients) {
    const float *restrict g = gradients + at->start;
    float *restrict p = parameters + at->start;
    float *restrict m = at->first, *restrict v = at->second;
    int64_t n = at->length;
    float norm = norm_of(g, n), scale = 1.0f, eps = (float)at->eps;
    if (at->longest > 0.0 && !(norm <= (float)at->longest)) scale = (float)at->longest / norm;
    if (at->kind == 0) {
        *at->steps += 1.0f;
        double count = *at->steps;
        float rate = (float)(at->rate / (1.0 - pow(0.9, count))), root = (float)sqrt(1.0 - pow(0.999, count));
        for (int64_t i = 0; i < n; i++) {
            float d = g[i] * scale;
            m[i] = m[i] + 0.1f * (d - m[i]);
            v[i] = 0.999f * v[i] + 0.001f * d * d;
            p[i] -= rate * m[i] / (sqrtf(v[i]) / root + eps);
        }
    } else {
        float keep = (float)at->alpha, take = (float)(1.0 - at->alpha), rate = (float)at->rate;
        for (int64_t i = 0; i < n; i++) {
            float d = g[i] * scale;
            v[i] = keep * v[i] + take * d * d;
            p[i] -= rate * d / (at->kind == 1 ? sqrtf(v[i]) + eps : sqrtf(v[i] + eps));
        }
    }
    return norm;
}

/* Rows of the sources named by `order` put side by side. */
static void gather_rows(char *to, const char *from, const int64_t *order, int64_t count, int64_t bytes) {
    if (bytes == 4)
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] = ((const float *)from)[order[i]];
    else
        for (int64_t i = 0; i < count; i++) memcpy(to + i * bytes, from + order[i] * bytes, bytes);
}
