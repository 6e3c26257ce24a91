/* Activations and LayerNorm of fully connected layers; part of a program that has one of them. */

/* The normal distribution function, `bell` = e^(-x^2 / 2) given: to 1e-7 by Abramowitz and Stegun 7.1.26. */
ALWAYS float normal_below_(float x, float bell) {
    float size = x < 0.0f ? -x : x;
    float t = 1.0f / (1.0f + 0.2316419f * size); /* 0.3275911 / sqrt(2) */
    float tail = 0.5307027f;
    tail = tail * t + -0.7265760f;
    tail = tail * t + 0.7107069f;
    tail = tail * t + -0.1422484f;
    tail = tail * t + 0.1274148f;
    tail = tail * t * bell;
    return x < 0.0f ? tail : 1.0f - tail;
}

ALWAYS float elu_(float x, float alpha) { return x > 0.0f ? x : alpha * expm1_(x); }
ALWAYS float elu_slope_(float x, float alpha) { return x > 0.0f ? 1.0f : alpha * exp_(x); }
ALWAYS float gelu_(float x) { return x * normal_below_(x, exp_(-0.5f * x * x)); }
ALWAYS float gelu_slope_(float x) {
    float bell = exp_(-0.5f * x * x);
    return normal_below_(x, bell) + x * bell * 0.39894228f;
}
ALWAYS float silu_(float x) { return x / (1.0f + exp_(-x)); }
ALWAYS float silu_slope_(float x) {
    float s = sigmoid_(x);
    return s * (1.0f + x * (1.0f - s));
}

/* Each row of x [rows, n] to mean 0 and variance 1, then scaled and shifted. */
static __attribute__((noinline)) void layer_norm(long rows, int n, const float *restrict x, const float *restrict weight,
        const float *restrict bias, float eps, float *restrict out, float *restrict means, float *restrict rates) {
    for (long row = 0; row < rows; row++, x += n, out += n) {
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += x[i];
        float mean = sum / n;
#pragma omp simd reduction(+ : squares)
        for (int i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
        float rate = 1.0f / sqrtf(squares / n + eps);
        for (int i = 0; i < n; i++) out[i] = (x[i] - mean) * rate * weight[i] + bias[i];
        means[row] = mean;
        rates[row] = rate;
    }
}

static __attribute__((noinline)) void layer_norm_backward(long rows, int n, const float *restrict grad,
        const float *restrict x, const float *restrict means, const float *restrict rates, const float *restrict weight,
        float *restrict by_x, float *restrict by_weight, float *restrict by_bias) {
    for (int i = 0; i < n; i++) by_weight[i] = by_bias[i] = 0.0f;
    for (long row = 0; row < rows; row++, grad += n, x += n, by_x += n) {
        float mean = means[row], rate = rates[row], sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
        for (int i = 0; i < n; i++) {
            float scaled = grad[i] * weight[i];
            sum += scaled;
            along += scaled * (x[i] - mean) * rate;
        }
        sum /= n;
        along /= n;
        for (int i = 0; i < n; i++) {
            float normal = (x[i] - mean) * rate;
            by_x[i] = rate * (grad[i] * weight[i] - sum - normal * along);
            by_weight[i] += grad[i] * normal;
            by_bias[i] += grad[i];
        }
    }
}
