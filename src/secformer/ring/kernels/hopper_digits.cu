// Words into digits, as digits.py lays them out: a thread has sixteen terms of a row, the threads of a warp have rows beside it.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int CHUNK = 16, WARPS = 4;

struct Work {
  const i64 *first, *second;  // second may be null
  signed char *out;
  i64 *clear;
  i64 first_strides[3], second_strides[3];  // batch, row, inner
  i64 factors[2][2];                        // of first and second, in each part
  i64 cleared;
  int rows, inner, parts, chunks, limbs;
};

__device__ __forceinline__ void load(i64 (&x)[CHUNK], const i64 *source, i64 stride, int count) {
  if (count == CHUNK && stride == 1 && ((u64)source & 15) == 0) {
#pragma unroll
    for (int term = 0; term < CHUNK; term += 2) {
      longlong2 pair = *(const longlong2 *)(source + term);
      x[term] = pair.x, x[term + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int term = 0; term < CHUNK; ++term) x[term] = term < count ? source[term * stride] : 0;
  }
}

__device__ __forceinline__ void combine(i64 (&sum)[CHUNK], const Work &work, int part, int start, int count, i64 batch, i64 row) {
  i64 x[CHUNK];
  const i64 *strides = work.first_strides;
  load(x, work.first + batch * strides[0] + row * strides[1] + start * strides[2], strides[2], count);
  i64 factor = work.factors[part][0];
#pragma unroll
  for (int term = 0; term < CHUNK; ++term) sum[term] = factor * x[term];
  if (work.second) {
    strides = work.second_strides;
    load(x, work.second + batch * strides[0] + row * strides[1] + start * strides[2], strides[2], count);
    factor = work.factors[part][1];
#pragma unroll
    for (int term = 0; term < CHUNK; ++term) sum[term] += factor * x[term];
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) digits(const Work work) {
  int row = blockIdx.y * 32 + threadIdx.x % 32, chunk = blockIdx.x * WARPS + threadIdx.x / 32;
  i64 batch = blockIdx.z;
  asm volatile("griddepcontrol.wait;\n griddepcontrol.launch_dependents;" ::: "memory");
  if (work.cleared) {
    i64 block = ((i64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    i64 step = (i64)gridDim.x * gridDim.y * gridDim.z * blockDim.x;
    for (i64 each = block * blockDim.x + threadIdx.x; each < work.cleared / 2; each += step)
      ((longlong2 *)work.clear)[each] = make_longlong2(0, 0);
    if (block == 0 && threadIdx.x == 0 && work.cleared % 2) work.clear[work.cleared - 1] = 0;
  }
  if (row >= work.rows || chunk >= work.chunks) return;
  i64 sum[CHUNK];
  int place = chunk * CHUNK, part = place >= work.inner, end = (part + 1) * work.inner;
  if (part < work.parts) {
    combine(sum, work, part, place - part * work.inner, min(CHUNK, end - place), batch, row);
  } else {
#pragma unroll
    for (int term = 0; term < CHUNK; ++term) sum[term] = 0;
  }
  if (part == 0 && work.parts == 2 && end < place + CHUNK) {  // the second part begins inside this chunk
    int before = end - place;
#pragma unroll
    for (int term = 0; term < CHUNK; ++term)
      if (term >= before && term - before < work.inner) {
        const i64 *a = work.first_strides, *b = work.second_strides;
        i64 column = term - before;
        sum[term] = work.factors[1][0] * work.first[batch * a[0] + row * a[1] + column * a[2]];
        if (work.second) sum[term] += work.factors[1][1] * work.second[batch * b[0] + row * b[1] + column * b[2]];
      }
  }
  u32 words[8][CHUNK / 4];
#pragma unroll
  for (int term = 0; term < CHUNK; ++term) sum[term] = (sum[term] + 0x8080808080808080ULL) ^ 0x8080808080808080ULL;
#pragma unroll
  for (int group = 0; group < CHUNK / 4; ++group)
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // four words of four bytes, transposed
      u32 a = (u64)sum[4 * group] >> 32 * half, b = (u64)sum[4 * group + 1] >> 32 * half;
      u32 c = (u64)sum[4 * group + 2] >> 32 * half, d = (u64)sum[4 * group + 3] >> 32 * half;
      u32 low = __byte_perm(a, b, 0x5140), next = __byte_perm(c, d, 0x5140);
      u32 third = __byte_perm(a, b, 0x7362), high = __byte_perm(c, d, 0x7362);
      words[4 * half][group] = __byte_perm(low, next, 0x5410), words[4 * half + 1][group] = __byte_perm(low, next, 0x7632);
      words[4 * half + 2][group] = __byte_perm(third, high, 0x5410);
      words[4 * half + 3][group] = __byte_perm(third, high, 0x7632);
    }
  signed char *target = work.out + ((batch * work.limbs * work.chunks + chunk) * work.rows + row) * CHUNK;
#pragma unroll
  for (int limb = 0; limb < 8; ++limb)
    if (limb < work.limbs)
      *(uint4 *)(target + (i64)limb * work.chunks * work.rows * CHUNK) =
          make_uint4(words[limb][0], words[limb][1], words[limb][2], words[limb][3]);
}
