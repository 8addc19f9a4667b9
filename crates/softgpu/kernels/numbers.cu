// Numbers at their edges: rounding, conversions, bits, special functions.

extern "C" __global__ void rounding_f32(unsigned n, const float *x, const float *y, float *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i];
    float *o = out + (size_t)i * 20;
    o[0] = __fadd_rn(a, b); o[1] = __fadd_rz(a, b); o[2] = __fadd_ru(a, b); o[3] = __fadd_rd(a, b);
    o[4] = __fmul_rn(a, b); o[5] = __fmul_rz(a, b); o[6] = __fmul_ru(a, b); o[7] = __fmul_rd(a, b);
    o[8] = __fmaf_rn(a, b, 0.1f); o[9] = __fmaf_rz(a, b, 0.1f); o[10] = __fmaf_ru(a, b, 0.1f); o[11] = __fmaf_rd(a, b, 0.1f);
    o[12] = __fdiv_rn(a, b); o[13] = __fdiv_rz(a, b); o[14] = __fsqrt_rn(fabsf(a)); o[15] = __fsqrt_ru(fabsf(b));
    o[16] = __frcp_rn(b); o[17] = __saturatef(a + b); o[18] = fminf(a, b); o[19] = fmaxf(a, b);
}

extern "C" __global__ void rounding_f64(unsigned n, const double *x, const double *y, double *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double a = x[i], b = y[i];
    double *o = out + (size_t)i * 12;
    o[0] = __dadd_rz(a, b); o[1] = __dadd_ru(a, b); o[2] = __dmul_rd(a, b); o[3] = __dmul_rn(a, b);
    o[4] = __fma_rn(a, b, 0.3); o[5] = __fma_rz(a, b, 0.3); o[6] = a / b; o[7] = sqrt(fabs(a));
    o[8] = floor(a) + ceil(b); o[9] = trunc(a) - rint(b); o[10] = fmin(a, b); o[11] = copysign(a, b);
}

extern "C" __global__ void convert(unsigned n, const float *x, const double *d, long long *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    double b = d[i];
    long long *o = out + (size_t)i * 16;
    o[0] = __float2int_rn(a); o[1] = __float2int_rz(a); o[2] = __float2int_ru(a); o[3] = __float2int_rd(a);
    o[4] = __float2uint_rz(a); o[5] = __float2ll_rn(a); o[6] = (long long)__float2ull_rz(a); o[7] = __double2int_rn(b);
    o[8] = __double2ll_rz(b); o[9] = (long long)__double2ull_ru(b); o[10] = __float_as_int(__double2float_rn(b));
    o[11] = __float_as_int(__double2float_rz(b)); o[12] = __double_as_longlong((double)a);
    o[13] = __float_as_int(__ll2float_rn(o[8])); o[14] = __float_as_int(__ull2float_ru((unsigned long long)o[9]));
    o[15] = (signed char)(int)a + 1000 * (unsigned char)(unsigned)a + 1000000ll * (short)(int)a;
}

extern "C" __global__ void bits(unsigned n, const unsigned *x, const unsigned *y, unsigned *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = x[i], b = y[i];
    unsigned *o = out + (size_t)i * 20;
    o[0] = __popc(a); o[1] = __clz(a); o[2] = __brev(a); o[3] = __ffs(a);
    o[4] = __byte_perm(a, b, b & 0x7777); o[5] = __funnelshift_l(a, b, a); o[6] = __funnelshift_rc(a, b, b & 63);
    o[7] = __umulhi(a, b); o[8] = __mulhi((int)a, (int)b); o[9] = __usad(a, b, 5); o[10] = __sad((int)a, (int)b, 5);
    o[11] = __dp4a((int)a, (int)b, 100); o[12] = __uhadd(a, b); o[13] = (a & b) ^ (a | ~b);
    o[14] = b ? a / b : 0; o[15] = b ? a % b : 0; o[16] = (int)b ? (int)a / (int)(b | 1) : 0; o[17] = (int)a % (int)(b | 1);
    o[18] = __popcll(((unsigned long long)a << 32) | b); o[19] = (unsigned)__clzll(((unsigned long long)(a >> 7) << 20) | b);
}

extern "C" __global__ void functions_f32(unsigned n, const float *x, float *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    float *o = out + (size_t)i * 12;
    o[0] = expf(a); o[1] = logf(fabsf(a) + 1e-3f); o[2] = sinf(a); o[3] = cosf(a); o[4] = tanhf(a);
    o[5] = rsqrtf(fabsf(a) + 1e-3f); o[6] = powf(fabsf(a), 1.5f); o[7] = __expf(a); o[8] = __sinf(a); o[9] = __logf(fabsf(a) + 1e-3f);
    o[10] = __fdividef(a, 3.0f); o[11] = exp2f(a);
}

// Escape times: loops that end at another count in every lane.
extern "C" __global__ void mandelbrot(unsigned width, unsigned height, unsigned most, unsigned *out) {
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col >= width || row >= height) return;
    double cx = -2.0 + 3.0 * col / width, cy = -1.5 + 3.0 * row / height, x = 0, y = 0;
    unsigned n = 0;
    while (n < most) {
        double xx = x * x, yy = y * y;
        if (xx + yy > 4.0) break;
        if (n % 7 == 3 && xx < 1e-9) { n = most; continue; }
        y = 2 * x * y + cy;
        x = xx - yy + cx;
        n++;
    }
    out[row * width + col] = n;
}

__device__ __noinline__ unsigned fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ float polynomial(float x, const float *c, int terms) {
    float sum = 0;
    for (int t = terms - 1; t >= 0; t--) sum = sum * x + c[t];
    return sum;
}

// Calls, recursion, and an array of each thread's own.
extern "C" __global__ void calls_and_locals(unsigned n, const float *x, unsigned *out, float *values) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float own[12];
    for (int t = 0; t < 12; t++) own[(t * 5 + i) % 12] = x[(i + t) % n];
    values[i] = polynomial(x[i], own, 3 + i % 9);
    out[i] = fibonacci(i % 15);
}

// A jump by a table.
extern "C" __global__ void machine(unsigned n, unsigned steps, const unsigned *program, unsigned *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = i * 2654435761u, pc = i;
    for (unsigned s = 0; s < steps; s++) {
        unsigned word = program[pc % 64];
        switch (word % 9) {
            case 0: a += word; break;
            case 1: a ^= a << 13; break;
            case 2: a ^= a >> 17; break;
            case 3: a *= 0x85ebca6bu; break;
            case 4: pc += a & 3; break;
            case 5: a = ~a; break;
            case 6: a = (a << 9) | (a >> 23); break;
            case 7: if (a & 64) a -= word; break;
            default: a += s;
        }
        pc++;
    }
    out[i] = a;
}
