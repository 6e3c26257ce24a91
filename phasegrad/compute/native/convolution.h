/* Convolutions over one image in [row, column, channel] order. Sizes are constants at every call, so the compiler
 * unrolls the tiles; sums stay in registers, and what follows a convolution happens before its result is stored.
 * `row` arguments count the floats from one row of an image to the next: images lie inside frames of zeros. */

#define BIAS 1     /* start from the bias */
#define RESIDUAL 2 /* add the image `raw`, and keep the sum there */
#define RELU 4
#define MASK 8     /* only where `mask` is positive */
#define ADD 16     /* to what `out` holds */

typedef int32_t ivec __attribute__((vector_size(32), aligned(4)));

/* A vector in a register: without this the compiler may load it again for every product. */
#ifdef __x86_64__
ALWAYS vec held(vec x) { __asm__("" : "+x"(x)); return x; }
#else
ALWAYS vec held(vec x) { return x; }
#endif

ALWAYS vec where(ivec mask, vec x) { return (vec)(mask & (ivec)x); }

/* `pixels` neighbours x (8 `vectors` channels); the taps of a row and their channels lie side by side. */
ALWAYS void pixel_tile(int flags, int pixels, int vectors, int K, int S, int CI, int CO, const float *in, int in_row,
                       const float *weights, const float *bias, float *out, float *raw, const float *mask) {
    vec sums[6][2];
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            sums[i][v] = flags & BIAS ? *(const vec *)(bias + v * LANES) : (vec){0};
    for (int ky = 0; ky < K; ky++)
        for (int j = 0; j < K * CI; j++) {
            const float *weight = weights + (ky * K * CI + j) * vectors * LANES;
            vec right[2];
            UNROLL for (int v = 0; v < vectors; v++) right[v] = held(*(const vec *)(weight + v * LANES));
            UNROLL for (int i = 0; i < pixels; i++) {
                float left = in[ky * in_row + i * S * CI + j];
                UNROLL for (int v = 0; v < vectors; v++) sums[i][v] += left * right[v];
            }
        }
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++) {
            int at = i * CO + v * LANES;
            vec sum = sums[i][v];
            if (flags & RESIDUAL) { sum += *(vec *)(raw + at); *(vec *)(raw + at) = sum; }
            if (flags & RELU) sum = where(~(sum < 0), sum); /* a NaN stays one */
            if (flags & MASK) sum = where(*(const vec *)(mask + at) > 0, sum);
            if (flags & ADD) sum += *(vec *)(out + at);
            *(vec *)(out + at) = sum;
        }
}

/* TILE(n) for `width` neighbours, x the first of each. 8 sums or more keep both multipliers busy, so what is left of a row
 * after tiles of 6 is done in fours and fives where it can be: 4 + 4, not 6 + 2. */
#define ROW_OF_TILES(width)                                                     \
    int x = 0, rest = (width) % 6;                                              \
    int sixes = (width) / 6 - (rest > 0 && rest < 4 && (width) > 6), left = (width) - 6 * sixes; \
    for (int n = 0; n < sixes; n++, x += 6) TILE(6);                            \
    if (left > 6) { TILE(4); x += 4; left -= 4; }                               \
    if (left == 1) TILE(1);                                                     \
    if (left == 2) TILE(2);                                                     \
    if (left == 3) TILE(3);                                                     \
    if (left == 4) TILE(4);                                                     \
    if (left == 5) TILE(5);

/* out [OH, OW, CO] of in [.., .., CI]. The weights of a tile's channels lie together, [CO / 8 vectors, K, K, CI, 8 vectors],
 * and serve the whole image before the next ones come. `raw` is dense, `mask` has rows of its own. */
ALWAYS void convolve(int flags, int K, int S, int OH, int OW, int CI, int CO, const float *in, int in_row,
                     const float *weights, const float *bias, float *out, int out_row, float *raw, const float *mask,
                     int mask_row) {
    int vectors = CO % (2 * LANES) ? 1 : 2;
    for (int c = 0; c < CO; c += vectors * LANES)
        for (int y = 0; y < OH; y++) {
#define TILE(n) pixel_tile(flags, n, vectors, K, S, CI, CO, in + (long)y * S * in_row + x * S * CI, in_row, weights + (long)c * K * K * CI, \
                           bias + c, out + (long)y * out_row + x * CO + c, raw + ((long)y * OW + x) * CO + c,             \
                           mask + (long)y * mask_row + x * CO + c)
            ROW_OF_TILES(OW)
#undef TILE
        }
}

/* `taps` rows of the weights x (8 `vectors` channels) of the weights' gradient, over some rows of the image. */
ALWAYS void weight_tile(int taps, int vectors, int S, int rows, int OW, int CI, int CO, const float *in, int in_row,
                        const float *g, int g_row, float *gradient) {
    vec sums[6][2];
    UNROLL for (int i = 0; i < taps; i++)
        UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = *(vec *)(gradient + (long)i * CO + v * LANES);
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < OW; x++) {
            const float *from = in + (long)y * S * in_row + x * S * CI, *down = g + (long)y * g_row + x * CO;
            vec right[2];
            UNROLL for (int v = 0; v < vectors; v++) right[v] = held(*(const vec *)(down + v * LANES));
            UNROLL for (int i = 0; i < taps; i++) {
                float left = from[i];
                UNROLL for (int v = 0; v < vectors; v++) sums[i][v] += left * right[v];
            }
        }
    UNROLL for (int i = 0; i < taps; i++)
        UNROLL for (int v = 0; v < vectors; v++) *(vec *)(gradient + (long)i * CO + v * LANES) = sums[i][v];
}

/* Adds to weights [K, K, CI, CO] and bias [CO] the gradient of one image, given that of its convolution. */
ALWAYS void weight_gradient(int K, int S, int OH, int OW, int CI, int CO, const float *in, int in_row, const float *g,
                            int g_row, float *weights, float *bias) {
    int vectors = CO % (2 * LANES) ? 1 : 2;
    int band = 6144 / (OW * CO + S * in_row) + 1; /* rows whose numbers stay in the first cache */
    for (int top = 0; top < OH; top += band) {
        int rows = OH - top < band ? OH - top : band;
        for (int ky = 0; ky < K; ky++)
            for (int c = 0; c < CO; c += vectors * LANES) {
                int j = 0;
#define TILE(n) weight_tile(n, vectors, S, rows, OW, CI, CO, in + (long)(top * S + ky) * in_row + j, in_row,     \
                            g + (long)top * g_row + c, g_row, weights + (long)(ky * K * CI + j) * CO + c)
                for (; j + 6 <= K * CI; j += 6) TILE(6);
                if (K * CI % 6 == 1) TILE(1);
                if (K * CI % 6 == 2) TILE(2);
                if (K * CI % 6 == 3) TILE(3);
                if (K * CI % 6 == 4) TILE(4);
                if (K * CI % 6 == 5) TILE(5);
#undef TILE
            }
    }
    for (int y = 0; y < OH; y++)
        for (int x = 0; x < OW; x++)
            for (int c = 0; c < CO; c++) bias[c] += g[(long)y * g_row + x * CO + c];
}

/* One tap's share of the input's gradient for `pixels` neighbours x (8 `vectors` channels). */
ALWAYS void spread_tile(int pixels, int vectors, int S, int CI, int CO, const float *g, const float *weights, float *in) {
    vec sums[6][2];
    UNROLL for (int i = 0; i < pixels; i++) UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = (vec){0};
    for (int o = 0; o < CO; o++) {
        vec right[2];
        UNROLL for (int v = 0; v < vectors; v++) right[v] = held(*(const vec *)(weights + (long)o * CI + v * LANES));
        UNROLL for (int i = 0; i < pixels; i++) {
            float left = g[i * CO + o];
            UNROLL for (int v = 0; v < vectors; v++) sums[i][v] += left * right[v];
        }
    }
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++) *(vec *)(in + (long)i * S * CI + v * LANES) += sums[i][v];
}

/* Gradient of the input of a convolution with a stride, tap by tap: in [.., .., CI] += g [OH, OW, CO] times weights
 * [K, K, CO, CI]. */
ALWAYS void spread(int K, int S, int OH, int OW, int CI, int CO, const float *g, int g_row, const float *weights,
                   float *in, int in_row) {
    int vectors = CI % (2 * LANES) ? 1 : 2;
    for (int y = 0; y < OH; y++)
        for (int ky = 0; ky < K; ky++)
            for (int kx = 0; kx < K; kx++)
                for (int c = 0; c < CI; c += vectors * LANES) {
#define TILE(n) spread_tile(n, vectors, S, CI, CO, g + (long)y * g_row + x * CO, weights + (long)(ky * K + kx) * CO * CI + c, \
                            in + (long)(y * S + ky) * in_row + (x * S + kx) * CI + c)
                    ROW_OF_TILES(OW)
#undef TILE
                }
}

/* The largest of 3 x 3 with stride 2 and one pixel of padding: raw [OH, OW, C], its ReLU in `out`, and which tap won. */
ALWAYS void max_pool(int H, int W, int C, const float *in, float *raw, float *out, int out_row, int32_t *winners) {
    int OH = (H + 1) / 2, OW = (W + 1) / 2;
    for (int y = 0; y < OH; y++)
        for (int x = 0; x < OW; x++)
            for (int c = 0; c < C; c += LANES) {
                vec best = (vec){0} - INFINITY;
                ivec winner = {0};
                for (int t = 0; t < 9; t++) {
                    int iy = 2 * y - 1 + t / 3, ix = 2 * x - 1 + t % 3;
                    if (iy < 0 || iy >= H || ix < 0 || ix >= W) continue;
                    vec here = *(const vec *)(in + ((long)iy * W + ix) * C + c);
                    ivec more = here > best;
                    best = (vec)((more & (ivec)here) | (~more & (ivec)best));
                    winner = (more & t) | (~more & winner);
                }
                long at = ((long)y * OW + x) * C + c;
                *(vec *)(raw + at) = best;
                *(ivec *)(winners + at) = winner;
                *(vec *)(out + (long)y * out_row + x * C + c) = where(~(best < 0), best);
            }
}

/* The gradient of what was pooled [H, W, C] from that of the pooled image. */
ALWAYS void unpool(int H, int W, int C, const float *g, int g_row, const int32_t *winners, float *in, int in_row) {
    int OH = (H + 1) / 2, OW = (W + 1) / 2;
    for (int y = 0; y < H; y++) memset(in + (long)y * in_row, 0, sizeof(float) * W * C);
    for (int y = 0; y < OH; y++)
        for (int x = 0; x < OW; x++)
            for (int c = 0; c < C; c += LANES) {
                vec down = *(const vec *)(g + (long)y * g_row + x * C + c);
                ivec winner = *(const ivec *)(winners + ((long)y * OW + x) * C + c);
                for (int t = 0; t < 9; t++) {
                    int iy = 2 * y - 1 + t / 3, ix = 2 * x - 1 + t % 3;
                    if (iy < 0 || iy >= H || ix < 0 || ix >= W) continue;
                    *(vec *)(in + (long)iy * in_row + ix * C + c) += where(winner == t, down);
                }
            }
}

/* A frame of bytes as floats; `first` where its channels come first. */
ALWAYS void unpack(int H, int W, int C, int first, float scale, const pixel *frame, float *out, int out_row) {
    for (int y = 0; y < H; y++)
        if (first)
            for (int x = 0; x < W; x++)
                for (int c = 0; c < C; c++) out[(long)y * out_row + x * C + c] = scale * frame[((long)c * H + y) * W + x];
        else
            for (int i = 0; i < W * C; i++) out[(long)y * out_row + i] = scale * frame[(long)y * W * C + i];
}
