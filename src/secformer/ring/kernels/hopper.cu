// Digits times digits on Hopper's tensor cores; hopper.py says what is computed and defines the names in capitals.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int ROWS = 64, STEP = 32, CHUNK = 16, WARPGROUP = 128;
constexpr int LEFT_BYTES = LEFT * ROWS * STEP, RIGHT_BYTES = RIGHT * COLUMNS * STEP, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int REGISTERS = COLUMNS / 2, HALF = COLUMNS / 4;  // of one sum in a thread; of the half it stores

__host__ __device__ constexpr bool owns(int group, int sum) { return ((group ? SECOND : FIRST) >> sum) & 1; }
__host__ __device__ constexpr int place(int group, int sum) {  // among the sums of its group
  int count = 0;
  for (int other = 0; other < sum; ++other) count += owns(group, other);
  return count;
}

struct Work {
  const signed char *left, *right;  // (batch, digit, chunk, row, 16)
  const i64 *extra;
  i64 *out;
  int rows, columns, chunks, tiles_down, tiles_across, pieces, span, items, one_right;  // tiles_down and items in clusters
};

struct Item {
  int batch, row, column, piece, first, steps;
  __device__ Item(const Work &work, int number) {
    row = (number % work.tiles_down * CLUSTER + blockIdx.x % CLUSTER) * ROWS, number /= work.tiles_down;
    column = number % work.tiles_across * COLUMNS, number /= work.tiles_across;
    piece = number % work.pieces, batch = number / work.pieces;
    first = piece * work.span;
    steps = min(work.span, work.chunks / 2 - first);
  }
};

// -- barriers and copies --------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ __forceinline__ void start_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
// Whoever arrives has read shared memory through wgmma and waited for it; it has written nothing that the other block would have to
// see, so no release at the cluster's scope is asked for: that would wait for all memory.
__device__ __forceinline__ void arrive(u32 barrier, int block) {
  asm volatile(
      "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @done bra ready;\n bra again;\n ready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void copy(u32 target, const void *source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void copy_to_all(u32 target, const void *source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          target),
      "l"(source), "r"(bytes), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
      : "memory");
}
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}

// A tile of the first digit, without swizzling: 16 bytes of a row, the next row beside them, the next 16 terms `rows` rows on.
__device__ __forceinline__ u64 descriptor(u32 base, int rows) {
  return (u64)((base & 0x3FFFF) >> 4) | (u64)(rows * CHUNK >> 4) << 16 | (u64)(128 >> 4) << 32;
}

__device__ __forceinline__ void multiply(int (&sum)[REGISTERS], u64 left, u64 right) { MULTIPLY }

// -- roles ----------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void fetch(const Work &work, u32 stages, u32 full, u32 empty) {
  int lane = threadIdx.x % 32, number = 0;
  bool left = lane < 2 * LEFT, active = lane < 2 * (LEFT + RIGHT);
  int index = left ? lane : lane - 2 * LEFT, digit = index / 2, half = index % 2;
  int size = left ? ROWS : COLUMNS, length = left ? work.rows : work.columns;
  u32 offset = left ? index * ROWS * CHUNK : LEFT_BYTES + index * COLUMNS * CHUNK;
  const signed char *base = left ? work.left : work.right;
  if (!left) active = active && index % CLUSTER == blockIdx.x % CLUSTER;  // the others come from the other blocks
  for (int taken = blockIdx.x / CLUSTER; taken < work.items; taken += gridDim.x / CLUSTER) {
    Item item(work, taken);
    int start = left ? item.row : item.column;
    int batch = left || !work.one_right ? item.batch : 0;
    int bytes = min(size, length - start) * CHUNK;
    u32 total = (max(0, min(ROWS, work.rows - item.row)) * LEFT + min(COLUMNS, work.columns - item.column) * RIGHT) * STEP;
    i64 stride = (i64)length * CHUNK;
    const signed char *source =
        base + ((i64)(batch * (left ? LEFT : RIGHT) + digit) * work.chunks + 2 * item.first + half) * stride + start * CHUNK;
    for (int step = 0; step < item.steps; ++step, ++number) {
      int stage = number % STAGES;
      wait(empty + 8 * stage, (number / STAGES & 1) ^ 1);
      if (lane == 0) expect(full + 8 * stage, total);
      __syncwarp();
      if (active && bytes > 0) {
        if (left || CLUSTER == 1)
          copy(stages + stage * STAGE_BYTES + offset, source, bytes, full + 8 * stage);
        else
          copy_to_all(stages + stage * STAGE_BYTES + offset, source, bytes, full + 8 * stage);
      }
      source += 2 * stride;
    }
  }
}

template <int GROUP>
constexpr int SUMS = place(GROUP, LIMBS) ? place(GROUP, LIMBS) : 1;

template <int GROUP, int PAIR = 0>  // unrolled by the language: a sum must be known to stay in its registers
__device__ __forceinline__ void multiply_pairs(int (&sums)[SUMS<GROUP>][REGISTERS], u64 left, u64 right) {
  constexpr int i = PAIR / RIGHT, j = PAIR % RIGHT;
  if constexpr (i + j < LIMBS && owns(GROUP, i + j)) {
    constexpr int kept = place(GROUP, i + j);
    multiply(sums[kept], left + i * (ROWS * STEP >> 4), right + j * (COLUMNS * STEP >> 4));
  }
  if constexpr (PAIR + 1 < LEFT * RIGHT) multiply_pairs<GROUP, PAIR + 1>(sums, left, right);
}

template <int GROUP, int SUM = 0>
__device__ __forceinline__ i64 total(const int (&sums)[SUMS<GROUP>][REGISTERS], int index) {
  i64 result = 0;
  if constexpr (owns(GROUP, SUM)) {
    constexpr int kept = place(GROUP, SUM);
    result = (i64)sums[kept][index] << (8 * SUM);
  }
  if constexpr (SUM + 1 < LIMBS) result += total<GROUP, SUM + 1>(sums, index);
  return result;
}

template <int GROUP>
__device__ __forceinline__ void compute(const Work &work, u32 stages, u32 full, u32 empty, i64 *exchanged) {
  int thread = threadIdx.x % WARPGROUP, lane = thread % 32, number = 0;
  i64 *sent = exchanged + GROUP * HALF * WARPGROUP + thread, *received = exchanged + (1 - GROUP) * HALF * WARPGROUP + thread;
  for (int taken = blockIdx.x / CLUSTER; taken < work.items; taken += gridDim.x / CLUSTER) {
    Item item(work, taken);
    int sums[SUMS<GROUP>][REGISTERS];
#pragma unroll
    for (int sum = 0; sum < SUMS<GROUP>; ++sum)
#pragma unroll
      for (int index = 0; index < REGISTERS; ++index) sums[sum][index] = 0;
    for (int step = 0; step < item.steps; ++step, ++number) {
      int stage = number % STAGES;
      wait(full + 8 * stage, number / STAGES & 1);
      u64 left = descriptor(stages + stage * STAGE_BYTES, ROWS);
      u64 right = descriptor(stages + stage * STAGE_BYTES + LEFT_BYTES, COLUMNS);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      multiply_pairs<GROUP>(sums, left, right);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      if (step && lane < CLUSTER) arrive(empty + 8 * ((number - 1) % STAGES), lane);  // that stage has been read
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (lane < CLUSTER) arrive(empty + 8 * ((number - 1) % STAGES), lane);
    constexpr int KEPT = GROUP * HALF, GIVEN = (1 - GROUP) * HALF;
#pragma unroll
    for (int index = 0; index < HALF; ++index) sent[index * WARPGROUP] = total<GROUP>(sums, GIVEN + index);
    asm volatile("bar.sync 1, 256;" ::: "memory");
    int row = item.row + thread / 32 * 16 + lane / 4, column = item.column + KEPT * 2 + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < HALF / 4; ++block)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        int index = block * 4 + lower * 2, r = row + 8 * lower, c = column + 8 * block;
        i64 x = total<GROUP>(sums, KEPT + index) + received[index * WARPGROUP];
        i64 y = total<GROUP>(sums, KEPT + index + 1) + received[(index + 1) * WARPGROUP];
        if (r < work.rows && c < work.columns) {
          i64 target = ((i64)item.batch * work.rows + r) * work.columns + c;
          bool both = c + 1 < work.columns;
          if (work.extra && item.piece == 0) {
            x += work.extra[target];
            if (both) y += work.extra[target + 1];
          }
          if (work.pieces > 1) {
            atomicAdd((u64 *)work.out + target, (u64)x);
            if (both) atomicAdd((u64 *)work.out + target + 1, (u64)y);
          } else if (work.columns % 2 == 0) {
            *(longlong2 *)(work.out + target) = make_longlong2(x, y);
          } else {
            work.out[target] = x;
            if (both) work.out[target + 1] = y;
          }
        }
      }
    asm volatile("bar.sync 1, 256;" ::: "memory");
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(3 * WARPGROUP, 1) products(const Work work) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  u32 stages = address(memory), full = address(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      start_barrier(full + 8 * stage, 1);
      start_barrier(empty + 8 * stage, 8 * CLUSTER);  // the warps of two groups
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  meet();
  asm volatile("griddepcontrol.wait;" ::: "memory");  // begun while the left operand was still being cut
  i64 *exchanged = (i64 *)(memory + STAGES * STAGE_BYTES);
  int group = threadIdx.x / WARPGROUP;
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < 2 * WARPGROUP + 32) fetch(work, stages, full, empty);
  } else if (group == 0) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    compute<0>(work, stages, full, empty, exchanged);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    compute<1>(work, stages, full, empty, exchanged);
  }
  meet();  // no block ends while another may still tell it something
}
