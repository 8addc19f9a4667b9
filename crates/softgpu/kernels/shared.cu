// Kernels whose threads talk to one another: barriers, shuffles, votes, atomics.

extern "C" __global__ void reduce_u32(unsigned n, const unsigned *x, unsigned *sum) {
    __shared__ unsigned part[256];
    unsigned own = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i];
    part[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

// One sum for each block, in a fixed order: the same bits everywhere.
extern "C" __global__ void reduce_f32(unsigned n, const float *x, float *sums) {
    extern __shared__ float warps[];
    float own = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i];
    for (int step = 16; step > 0; step /= 2) own += __shfl_down_sync(0xffffffffu, own, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
        own = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
        for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(0xffffffffu, own, step);
        if (threadIdx.x == 0) sums[blockIdx.x] = own;
    }
}

extern "C" __global__ void scan_u32(unsigned n, const unsigned *x, unsigned *y) {
    __shared__ unsigned part[2][512];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, side = 0;
    part[0][threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned step = 1; step < blockDim.x; step *= 2) {
        unsigned sum = part[side][threadIdx.x];
        if (threadIdx.x >= step) sum += part[side][threadIdx.x - step];
        side ^= 1;
        part[side][threadIdx.x] = sum;
        __syncthreads();
    }
    if (i < n) y[i] = part[side][threadIdx.x];
}

extern "C" __global__ void histogram_u32(unsigned n, const unsigned *x, unsigned *bins) {
    __shared__ unsigned own[64];
    for (unsigned b = threadIdx.x; b < 64; b += blockDim.x) own[b] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&own[x[i] >> 26], 1);
    __syncthreads();
    for (unsigned b = threadIdx.x; b < 64; b += blockDim.x) atomicAdd(&bins[b], own[b]);
}

extern "C" __global__ void bitonic_step(unsigned n, unsigned j, unsigned k, unsigned *x) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ j;
    if (i >= n || other <= i || other >= n) return;
    bool up = (i & k) == 0;
    unsigned a = x[i], b = x[other];
    if ((a > b) == up) {
        x[i] = b;
        x[other] = a;
    }
}

// The odd numbers of each warp, side by side, in order.
extern "C" __global__ void compact_odd(unsigned n, const unsigned *x, unsigned *y, unsigned *counts) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    bool odd = i < n && (x[i] & 1);
    unsigned ballot = __ballot_sync(0xffffffffu, odd), lane = threadIdx.x % 32;
    unsigned before = __popc(ballot & ((1u << lane) - 1));
    int all = __all_sync(0xffffffffu, i < n), any = __any_sync(0xffffffffu, i < n && x[i] > 0xf0000000u);
    if (odd) y[i - lane + before] = x[i];
    if (lane == 0 && i < n) counts[i / 32] = __popc(ballot) | (all ? 0x100u : 0u) | (any ? 0x200u : 0u);
}

extern "C" __global__ void atomics(unsigned n, const unsigned *x, unsigned *out, unsigned long long *wide, int *sout) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i];
    atomicMin(&out[0], v);
    atomicMax(&out[1], v);
    atomicAnd(&out[2], v | 0xff00u);
    atomicOr(&out[3], v & 0x00ff00ffu);
    atomicXor(&out[4], v);
    atomicInc(&out[5], 1000);
    atomicDec(&out[6], 777);
    atomicSub(&out[7], v);
    atomicAdd(&wide[0], (unsigned long long)v * v);
    atomicMax(&wide[1], (unsigned long long)v << 13);
    atomicMin(&sout[0], (int)v);
    atomicMax(&sout[1], (int)v);
    // A sum by compare and swap: in whatever order, the same.
    unsigned seen = out[8], had;
    do {
        had = seen;
        seen = atomicCAS(&out[8], had, had + (v >> 7));
    } while (seen != had);
}

extern "C" __global__ void matmul_f32(unsigned n, unsigned m, unsigned k, const float *a, const float *b, float *c) {
    __shared__ float as[16][16], bs[16][16];
    unsigned row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (unsigned t = 0; t < k; t += 16) {
        as[threadIdx.y][threadIdx.x] = row < n && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0;
        bs[threadIdx.y][threadIdx.x] = t + threadIdx.y < k && col < m ? b[(t + threadIdx.y) * m + col] : 0;
        __syncthreads();
#pragma unroll
        for (unsigned j = 0; j < 16; j++) sum += as[threadIdx.y][j] * bs[j][threadIdx.x];
        __syncthreads();
    }
    if (row < n && col < m) c[row * m + col] = sum;
}

extern "C" __global__ void softmax_f32(unsigned cols, const float *x, float *y) {
    __shared__ float part[128];
    const float *row = x + (size_t)blockIdx.x * cols;
    float most = -3.4e38f;
    for (unsigned c = threadIdx.x; c < cols; c += blockDim.x) most = fmaxf(most, row[c]);
    part[threadIdx.x] = most;
    __syncthreads();
    for (unsigned half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    float sum = 0;
    for (unsigned c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(row[c] - most);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    for (unsigned c = threadIdx.x; c < cols; c += blockDim.x) y[(size_t)blockIdx.x * cols + c] = expf(row[c] - most) / part[0];
}
