// A two-layer perceptron, trained by stochastic gradient descent.

// out = relu?(in · w + b): one thread for each output of each sample.
extern "C" __global__ void dense(unsigned batch, unsigned in, unsigned out, int relu, const float *x, const float *w,
                                 const float *b, float *y) {
    unsigned o = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y * blockDim.y + threadIdx.y;
    if (o >= out || s >= batch) return;
    float sum = b[o];
    for (unsigned i = 0; i < in; i++) sum = fmaf(x[s * in + i], w[i * out + o], sum);
    y[s * out + o] = relu && sum < 0 ? 0 : sum;
}

// Softmax, its loss, and the loss's slope by the logits: one thread for each sample.
extern "C" __global__ void loss(unsigned batch, unsigned classes, const float *logits, const unsigned *labels,
                                float *slope, float *losses) {
    unsigned s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= batch) return;
    const float *row = logits + s * classes;
    float most = row[0];
    for (unsigned c = 1; c < classes; c++) most = fmaxf(most, row[c]);
    float sum = 0;
    for (unsigned c = 0; c < classes; c++) sum += expf(row[c] - most);
    for (unsigned c = 0; c < classes; c++) {
        float p = expf(row[c] - most) / sum;
        slope[s * classes + c] = (p - (c == labels[s] ? 1.0f : 0.0f)) / batch;
    }
    losses[s] = logf(sum) + most - row[labels[s]];
}

// The slope by the inputs of a layer, cut off where its relu was.
extern "C" __global__ void back(unsigned batch, unsigned in, unsigned out, const float *slope, const float *w,
                                const float *x, float *before) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= in || s >= batch) return;
    float sum = 0;
    for (unsigned o = 0; o < out; o++) sum = fmaf(slope[s * out + o], w[i * out + o], sum);
    before[s * in + i] = x[s * in + i] > 0 ? sum : 0;
}

// One step down the slope: weights and biases.
extern "C" __global__ void descend(unsigned batch, unsigned in, unsigned out, float rate, const float *x,
                                   const float *slope, float *w, float *b) {
    unsigned o = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (o >= out || i > in) return;
    float sum = 0;
    for (unsigned s = 0; s < batch; s++) sum = fmaf(i < in ? x[s * in + i] : 1.0f, slope[s * out + o], sum);
    float *place = i < in ? &w[i * out + o] : &b[o];
    *place -= rate * sum;
}
