/* Recurrent layers: all steps of S sequences in one call, rows step by step as in models/memory.py, which says the same
 * with torch. A step's products go through `product`; its gates are one loop that the compiler turns into vectors. */

/* What each sequence holds at the start of step t: the outputs before it, or its state, times whether they are kept. */
static void held_before(int S, int H, int t, int width, const float *restrict outputs, const float *restrict states,
                        const float *restrict keep, float *restrict held) {
    for (int s = 0; s < S; s++) {
        const float *from = t ? outputs + ((long)(t - 1) * S + s) * H : states + (long)s * width;
        float kept = keep[(long)t * S + s];
        for (int j = 0; j < H; j++) held[(long)s * H + j] = kept * from[j];
    }
}

/* B [N, K] = A [K, N] turned. */
static void turn(int K, int N, const float *restrict A, float *restrict B) {
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) B[(long)n * K + k] = A[(long)k * N + n];
}

static __attribute__((noinline)) void lstm_forward(int S, int L, int H, const float *projected, const float *states,
        const float *keep, const float *weights, float *outputs, float *cells, float *gates, float *held, float *packed) {
    for (int t = 0; t < L; t++) {
        held_before(S, H, t, 2 * H, outputs, states, keep, held);
        product(S, 4 * H, H, held, H, 1, weights, 4 * H, 1, gates + (long)t * S * 4 * H, 4 * H, 0, packed);
        for (int s = 0; s < S; s++) {
            long row = (long)t * S + s;
            const float *restrict p = projected + row * 4 * H;
            const float *restrict before = t ? cells + (row - S) * H : states + (long)s * 2 * H + H;
            float *restrict g = gates + row * 4 * H;
            float *restrict c = cells + row * H, *restrict out = outputs + row * H;
            float kept = keep[row];
            for (int j = 0; j < H; j++) {
                float enter = sigmoid_(g[j] + p[j]), forget = sigmoid_(g[H + j] + p[H + j]);
                float new = tanh_(g[2 * H + j] + p[2 * H + j]), leave = sigmoid_(g[3 * H + j] + p[3 * H + j]);
                float cell = forget * (kept * before[j]) + enter * new;
                g[j] = enter, g[H + j] = forget, g[2 * H + j] = new, g[3 * H + j] = leave;
                c[j] = cell;
                out[j] = leave * tanh_(cell);
            }
        }
    }
}

static __attribute__((noinline)) void lstm_backward(int S, int L, int H, const float *grad, const float *states,
        const float *keep, const float *weights, const float *cells, const float *gates, float *result,
        float *hidden_grad, float *cell_grad, float *turned, float *packed) {
    turn(H, 4 * H, weights, turned);
    memset(hidden_grad, 0, sizeof(float) * S * H);
    memset(cell_grad, 0, sizeof(float) * S * H);
    for (int t = L - 1; t >= 0; t--) {
        for (int s = 0; s < S; s++) {
            long row = (long)t * S + s;
            const float *restrict g = gates + row * 4 * H, *restrict c = cells + row * H, *restrict d = grad + row * H;
            const float *restrict before = t ? cells + (row - S) * H : states + (long)s * 2 * H + H;
            float *restrict own = result + row * 4 * H;
            float *restrict dh = hidden_grad + (long)s * H, *restrict dc = cell_grad + (long)s * H;
            float kept = keep[row];
            for (int j = 0; j < H; j++) {
                float enter = g[j], forget = g[H + j], new = g[2 * H + j], leave = g[3 * H + j];
                float squashed = tanh_(c[j]), out = dh[j] + d[j];
                float cell = dc[j] + out * leave * (1.0f - squashed * squashed);
                own[j] = cell * new * enter * (1.0f - enter);
                own[H + j] = cell * (kept * before[j]) * forget * (1.0f - forget);
                own[2 * H + j] = cell * enter * (1.0f - new * new);
                own[3 * H + j] = out * squashed * leave * (1.0f - leave);
                dc[j] = cell * forget * kept;
            }
        }
        if (t == 0) break;
        product(S, H, 4 * H, result + (long)t * S * 4 * H, 4 * H, 1, turned, H, 1, hidden_grad, H, 0, packed);
        for (int s = 0; s < S; s++)
            for (int j = 0; j < H; j++) hidden_grad[(long)s * H + j] *= keep[(long)t * S + s];
    }
}

static __attribute__((noinline)) void gru_forward(int S, int L, int H, const float *projected, const float *states,
        const float *keep, const float *weights, const float *new_bias, float *outputs, float *gates, float *held,
        float *own, float *packed) {
    for (int t = 0; t < L; t++) {
        held_before(S, H, t, H, outputs, states, keep, held);
        product(S, 3 * H, H, held, H, 1, weights, 3 * H, 1, own, 3 * H, 0, packed);
        for (int s = 0; s < S; s++) {
            long row = (long)t * S + s;
            const float *restrict p = projected + row * 3 * H, *restrict o = own + (long)s * 3 * H;
            const float *restrict h = held + (long)s * H;
            float *restrict g = gates + row * 4 * H, *restrict out = outputs + row * H;
            for (int j = 0; j < H; j++) {
                float reset = sigmoid_(p[j] + o[j]), update = sigmoid_(p[H + j] + o[H + j]);
                float inner = o[2 * H + j] + new_bias[j];
                float new = tanh_(p[2 * H + j] + reset * inner);
                g[j] = reset, g[H + j] = update, g[2 * H + j] = new, g[3 * H + j] = inner;
                out[j] = new + update * (h[j] - new);
            }
        }
    }
}

static __attribute__((noinline)) void gru_backward(int S, int L, int H, const float *grad, const float *states,
        const float *keep, const float *weights, const float *outputs, const float *gates, float *result,
        float *hidden_grad, float *through, float *turned, float *held, float *packed) {
    turn(H, 3 * H, weights, turned);
    memset(hidden_grad, 0, sizeof(float) * S * H);
    for (int t = L - 1; t >= 0; t--) {
        held_before(S, H, t, H, outputs, states, keep, held);
        for (int s = 0; s < S; s++) {
            long row = (long)t * S + s;
            const float *restrict g = gates + row * 4 * H, *restrict d = grad + row * H, *restrict h = held + (long)s * H;
            float *restrict own = result + row * 3 * H, *restrict on = through + (long)s * 3 * H;
            float *restrict dh = hidden_grad + (long)s * H;
            for (int j = 0; j < H; j++) {
                float reset = g[j], update = g[H + j], new = g[2 * H + j], inner = g[3 * H + j];
                float out = dh[j] + d[j];
                float change = out * (1.0f - update) * (1.0f - new * new);
                own[j] = on[j] = change * inner * reset * (1.0f - reset);
                own[H + j] = on[H + j] = out * (h[j] - new) * update * (1.0f - update);
                own[2 * H + j] = change;
                on[2 * H + j] = change * reset;
                dh[j] = out * update;
            }
        }
        if (t == 0) break;
        product(S, H, 3 * H, through, 3 * H, 1, turned, H, 1, held, H, 0, packed);
        for (int s = 0; s < S; s++)
            for (int j = 0; j < H; j++)
                hidden_grad[(long)s * H + j] = (hidden_grad[(long)s * H + j] + held[(long)s * H + j]) * keep[(long)t * S + s];
    }
}
