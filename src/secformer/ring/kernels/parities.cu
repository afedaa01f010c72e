// Rows times columns over GF(2), 32 terms by one instruction; bit_planes.py says how the operands lie.
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int LINES = 16, THREADS = 128, STAGES = 3;  // lines that are fetched together; a thread has 8 × 8 of 64 × 128 sums
constexpr int ROWS = 64, COLUMNS = 128, STAGE_WORDS = LINES * (ROWS + COLUMNS);

struct Work {
  const u32 *rows, *columns;  // (line, row) and (line, column), whole tiles
  u64 *out;                   // (row, word), to which the product is added
  int count, words, height, width, steps, span, tiles_down, tiles_across;  // height and width of the operands; steps of LINES
};

__device__ __forceinline__ void copy(u32 *target, const u32 *source) {
  u32 place = (u32)__cvta_generic_to_shared(target);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(source) : "memory");
}

__device__ __forceinline__ void fetch(const Work &work, u32 *stage, int line, int row, int column) {
#pragma unroll
  for (int part = 0; part < LINES * ROWS / 4 / THREADS; ++part) {
    int number = part * THREADS + threadIdx.x, down = number / (ROWS / 4), across = number % (ROWS / 4) * 4;
    copy(stage + down * ROWS + across, work.rows + (u64)(line + down) * work.height + row + across);
  }
#pragma unroll
  for (int part = 0; part < LINES * COLUMNS / 4 / THREADS; ++part) {
    int number = part * THREADS + threadIdx.x, down = number / (COLUMNS / 4), across = number % (COLUMNS / 4) * 4;
    copy(stage + LINES * ROWS + down * COLUMNS + across, work.columns + (u64)(line + down) * work.width + column + across);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) parities(const Work work) {
  __shared__ __align__(16) u32 memory[STAGES][STAGE_WORDS];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  int number = blockIdx.x, thread = threadIdx.x, down = thread / 16, across = thread % 16;
  int row = number % work.tiles_down * ROWS;
  number /= work.tiles_down;
  int column = number % work.tiles_across * COLUMNS, first = number / work.tiles_across * work.span;
  int steps = min(work.span, work.steps - first);
  u32 sums[8][8] = {};
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < steps) fetch(work, memory[step], (first + step) * LINES, row, column);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();  // this stage has come for all, and the one before it was read by all
    int next = step + STAGES - 1;
    if (next < steps) fetch(work, memory[next % STAGES], (first + next) * LINES, row, column);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const uint4 *left = (const uint4 *)memory[step % STAGES], *right = left + LINES * ROWS / 4;
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      uint4 a0 = left[line * ROWS / 4 + down], a1 = left[line * ROWS / 4 + 8 + down];
      uint4 b0 = right[line * COLUMNS / 4 + across], b1 = right[line * COLUMNS / 4 + 16 + across];
      u32 a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w}, b[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] ^= a[i] & b[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the tile's columns: a word of the result, four bits from each of sixteen threads
      u32 bits = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) bits |= (__popc(sums[i][4 * half + j]) & 1) << j;
      u64 word = (u64)bits << (4 * across);
#pragma unroll
      for (int distance = 8; distance; distance /= 2) word |= __shfl_xor_sync(~0u, word, distance);
      int r = row + i / 4 * 32 + down * 4 + i % 4, c = column / 64 + half;
      if (across == 0 && r < work.count && c < work.words) atomicXor(work.out + (u64)r * work.words + c, word);
    }
}
