// Every kernel for every combination of types that it can have, but for truncated
// normal numbers: they are rounded as normal ones.
#include <cstddef>
#include <cstring>

#include <shardgen/accumulate.cuh>
#include <shardgen/adamw.cuh>
#include <shardgen/cast.cuh>
#include <shardgen/fill.cuh>
#include <shardgen/norm.cuh>
#include <shardgen/scale.cuh>
#include <shardgen/sgd.cuh>
#include <shardgen/zero.cuh>

using namespace shardgen;

struct Plan {
  static constexpr long long kAlignBytes = 16;
};

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) zero(void* to, long long n) { shardgen::zero<Plan>(to, n); }

struct Cast_f64_f32 : Plan { using Source = F64; using Target = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f64_f32(F32* to, const F64* from, long long n) { cast<Cast_f64_f32>(to, from, n); }
struct Cast_f64_bf16 : Plan { using Source = F64; using Target = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f64_bf16(BF16* to, const F64* from, long long n) { cast<Cast_f64_bf16>(to, from, n); }
struct Cast_f64_f16 : Plan { using Source = F64; using Target = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f64_f16(F16* to, const F64* from, long long n) { cast<Cast_f64_f16>(to, from, n); }
struct Cast_f64_f8e4m3 : Plan { using Source = F64; using Target = F8E4M3; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f64_f8e4m3(F8E4M3* to, const F64* from, long long n) { cast<Cast_f64_f8e4m3>(to, from, n); }
struct Cast_f64_f8e5m2 : Plan { using Source = F64; using Target = F8E5M2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f64_f8e5m2(F8E5M2* to, const F64* from, long long n) { cast<Cast_f64_f8e5m2>(to, from, n); }
struct Cast_f32_f64 : Plan { using Source = F32; using Target = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f32_f64(F64* to, const F32* from, long long n) { cast<Cast_f32_f64>(to, from, n); }
struct Cast_f32_bf16 : Plan { using Source = F32; using Target = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f32_bf16(BF16* to, const F32* from, long long n) { cast<Cast_f32_bf16>(to, from, n); }
struct Cast_f32_f16 : Plan { using Source = F32; using Target = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f32_f16(F16* to, const F32* from, long long n) { cast<Cast_f32_f16>(to, from, n); }
struct Cast_f32_f8e4m3 : Plan { using Source = F32; using Target = F8E4M3; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f32_f8e4m3(F8E4M3* to, const F32* from, long long n) { cast<Cast_f32_f8e4m3>(to, from, n); }
struct Cast_f32_f8e5m2 : Plan { using Source = F32; using Target = F8E5M2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f32_f8e5m2(F8E5M2* to, const F32* from, long long n) { cast<Cast_f32_f8e5m2>(to, from, n); }
struct Cast_bf16_f64 : Plan { using Source = BF16; using Target = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_bf16_f64(F64* to, const BF16* from, long long n) { cast<Cast_bf16_f64>(to, from, n); }
struct Cast_bf16_f32 : Plan { using Source = BF16; using Target = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_bf16_f32(F32* to, const BF16* from, long long n) { cast<Cast_bf16_f32>(to, from, n); }
struct Cast_bf16_f16 : Plan { using Source = BF16; using Target = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_bf16_f16(F16* to, const BF16* from, long long n) { cast<Cast_bf16_f16>(to, from, n); }
struct Cast_bf16_f8e4m3 : Plan { using Source = BF16; using Target = F8E4M3; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_bf16_f8e4m3(F8E4M3* to, const BF16* from, long long n) { cast<Cast_bf16_f8e4m3>(to, from, n); }
struct Cast_bf16_f8e5m2 : Plan { using Source = BF16; using Target = F8E5M2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_bf16_f8e5m2(F8E5M2* to, const BF16* from, long long n) { cast<Cast_bf16_f8e5m2>(to, from, n); }
struct Cast_f16_f64 : Plan { using Source = F16; using Target = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f16_f64(F64* to, const F16* from, long long n) { cast<Cast_f16_f64>(to, from, n); }
struct Cast_f16_f32 : Plan { using Source = F16; using Target = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f16_f32(F32* to, const F16* from, long long n) { cast<Cast_f16_f32>(to, from, n); }
struct Cast_f16_bf16 : Plan { using Source = F16; using Target = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f16_bf16(BF16* to, const F16* from, long long n) { cast<Cast_f16_bf16>(to, from, n); }
struct Cast_f16_f8e4m3 : Plan { using Source = F16; using Target = F8E4M3; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f16_f8e4m3(F8E4M3* to, const F16* from, long long n) { cast<Cast_f16_f8e4m3>(to, from, n); }
struct Cast_f16_f8e5m2 : Plan { using Source = F16; using Target = F8E5M2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f16_f8e5m2(F8E5M2* to, const F16* from, long long n) { cast<Cast_f16_f8e5m2>(to, from, n); }
struct Cast_f8e4m3_f64 : Plan { using Source = F8E4M3; using Target = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e4m3_f64(F64* to, const F8E4M3* from, long long n) { cast<Cast_f8e4m3_f64>(to, from, n); }
struct Cast_f8e4m3_f32 : Plan { using Source = F8E4M3; using Target = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e4m3_f32(F32* to, const F8E4M3* from, long long n) { cast<Cast_f8e4m3_f32>(to, from, n); }
struct Cast_f8e4m3_bf16 : Plan { using Source = F8E4M3; using Target = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e4m3_bf16(BF16* to, const F8E4M3* from, long long n) { cast<Cast_f8e4m3_bf16>(to, from, n); }
struct Cast_f8e4m3_f16 : Plan { using Source = F8E4M3; using Target = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e4m3_f16(F16* to, const F8E4M3* from, long long n) { cast<Cast_f8e4m3_f16>(to, from, n); }
struct Cast_f8e4m3_f8e5m2 : Plan { using Source = F8E4M3; using Target = F8E5M2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e4m3_f8e5m2(F8E5M2* to, const F8E4M3* from, long long n) { cast<Cast_f8e4m3_f8e5m2>(to, from, n); }
struct Cast_f8e5m2_f64 : Plan { using Source = F8E5M2; using Target = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e5m2_f64(F64* to, const F8E5M2* from, long long n) { cast<Cast_f8e5m2_f64>(to, from, n); }
struct Cast_f8e5m2_f32 : Plan { using Source = F8E5M2; using Target = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e5m2_f32(F32* to, const F8E5M2* from, long long n) { cast<Cast_f8e5m2_f32>(to, from, n); }
struct Cast_f8e5m2_bf16 : Plan { using Source = F8E5M2; using Target = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e5m2_bf16(BF16* to, const F8E5M2* from, long long n) { cast<Cast_f8e5m2_bf16>(to, from, n); }
struct Cast_f8e5m2_f16 : Plan { using Source = F8E5M2; using Target = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e5m2_f16(F16* to, const F8E5M2* from, long long n) { cast<Cast_f8e5m2_f16>(to, from, n); }
struct Cast_f8e5m2_f8e4m3 : Plan { using Source = F8E5M2; using Target = F8E4M3; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) cast_f8e5m2_f8e4m3(F8E4M3* to, const F8E5M2* from, long long n) { cast<Cast_f8e5m2_f8e4m3>(to, from, n); }

struct Accumulate_f64_f32_store : Plan { using Source = F64; using Sum = F32; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f64_f32_store(F32* sum, const F64* from, long long n, double by) { accumulate<Accumulate_f64_f32_store>(sum, from, n, by); }
struct Accumulate_f64_f32_add : Plan { using Source = F64; using Sum = F32; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f64_f32_add(F32* sum, const F64* from, long long n, double by) { accumulate<Accumulate_f64_f32_add>(sum, from, n, by); }
struct Accumulate_f32_f32_store : Plan { using Source = F32; using Sum = F32; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f32_f32_store(F32* sum, const F32* from, long long n, double by) { accumulate<Accumulate_f32_f32_store>(sum, from, n, by); }
struct Accumulate_f32_f32_add : Plan { using Source = F32; using Sum = F32; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f32_f32_add(F32* sum, const F32* from, long long n, double by) { accumulate<Accumulate_f32_f32_add>(sum, from, n, by); }
struct Accumulate_bf16_f32_store : Plan { using Source = BF16; using Sum = F32; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_bf16_f32_store(F32* sum, const BF16* from, long long n, double by) { accumulate<Accumulate_bf16_f32_store>(sum, from, n, by); }
struct Accumulate_bf16_f32_add : Plan { using Source = BF16; using Sum = F32; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_bf16_f32_add(F32* sum, const BF16* from, long long n, double by) { accumulate<Accumulate_bf16_f32_add>(sum, from, n, by); }
struct Accumulate_f16_f32_store : Plan { using Source = F16; using Sum = F32; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f16_f32_store(F32* sum, const F16* from, long long n, double by) { accumulate<Accumulate_f16_f32_store>(sum, from, n, by); }
struct Accumulate_f16_f32_add : Plan { using Source = F16; using Sum = F32; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f16_f32_add(F32* sum, const F16* from, long long n, double by) { accumulate<Accumulate_f16_f32_add>(sum, from, n, by); }
struct Accumulate_f64_f64_store : Plan { using Source = F64; using Sum = F64; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f64_f64_store(F64* sum, const F64* from, long long n, double by) { accumulate<Accumulate_f64_f64_store>(sum, from, n, by); }
struct Accumulate_f64_f64_add : Plan { using Source = F64; using Sum = F64; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f64_f64_add(F64* sum, const F64* from, long long n, double by) { accumulate<Accumulate_f64_f64_add>(sum, from, n, by); }
struct Accumulate_f32_f64_store : Plan { using Source = F32; using Sum = F64; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f32_f64_store(F64* sum, const F32* from, long long n, double by) { accumulate<Accumulate_f32_f64_store>(sum, from, n, by); }
struct Accumulate_f32_f64_add : Plan { using Source = F32; using Sum = F64; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f32_f64_add(F64* sum, const F32* from, long long n, double by) { accumulate<Accumulate_f32_f64_add>(sum, from, n, by); }
struct Accumulate_bf16_f64_store : Plan { using Source = BF16; using Sum = F64; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_bf16_f64_store(F64* sum, const BF16* from, long long n, double by) { accumulate<Accumulate_bf16_f64_store>(sum, from, n, by); }
struct Accumulate_bf16_f64_add : Plan { using Source = BF16; using Sum = F64; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_bf16_f64_add(F64* sum, const BF16* from, long long n, double by) { accumulate<Accumulate_bf16_f64_add>(sum, from, n, by); }
struct Accumulate_f16_f64_store : Plan { using Source = F16; using Sum = F64; static constexpr bool kStore = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f16_f64_store(F64* sum, const F16* from, long long n, double by) { accumulate<Accumulate_f16_f64_store>(sum, from, n, by); }
struct Accumulate_f16_f64_add : Plan { using Source = F16; using Sum = F64; static constexpr bool kStore = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) accumulate_f16_f64_add(F64* sum, const F16* from, long long n, double by) { accumulate<Accumulate_f16_f64_add>(sum, from, n, by); }

struct Only_f32 : Plan { using Float = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) scale_f32(F32* g, long long n, double by) { scale<Only_f32>(g, n, by); }
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) norm_f32(Norm* partials, const F32* g, long long n) { normChunks<Only_f32>(partials, g, n); }
struct AdamW_f32_f32 : Plan { using Float = F32; using Copy = F32; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) adamw_f32_f32(AdamWStep s, F32* p, F32* m, F32* v, const F32* g, F32* copy, long long n) { adamw<AdamW_f32_f32>(s, p, m, v, g, copy, n); }
struct SGD_f32_f32_momentum : Plan { using Float = F32; using Copy = F32; static constexpr bool kMomentum = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_f32_momentum(SGDStep s, F32* p, F32* b, const F32* g, F32* copy, long long n) { sgd<SGD_f32_f32_momentum>(s, p, b, g, copy, n); }
struct SGD_f32_f32_plain : Plan { using Float = F32; using Copy = F32; static constexpr bool kMomentum = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_f32_plain(SGDStep s, F32* p, F32* b, const F32* g, F32* copy, long long n) { sgd<SGD_f32_f32_plain>(s, p, b, g, copy, n); }
struct AdamW_f32_bf16 : Plan { using Float = F32; using Copy = BF16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) adamw_f32_bf16(AdamWStep s, F32* p, F32* m, F32* v, const F32* g, BF16* copy, long long n) { adamw<AdamW_f32_bf16>(s, p, m, v, g, copy, n); }
struct SGD_f32_bf16_momentum : Plan { using Float = F32; using Copy = BF16; static constexpr bool kMomentum = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_bf16_momentum(SGDStep s, F32* p, F32* b, const F32* g, BF16* copy, long long n) { sgd<SGD_f32_bf16_momentum>(s, p, b, g, copy, n); }
struct SGD_f32_bf16_plain : Plan { using Float = F32; using Copy = BF16; static constexpr bool kMomentum = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_bf16_plain(SGDStep s, F32* p, F32* b, const F32* g, BF16* copy, long long n) { sgd<SGD_f32_bf16_plain>(s, p, b, g, copy, n); }
struct AdamW_f32_f16 : Plan { using Float = F32; using Copy = F16; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) adamw_f32_f16(AdamWStep s, F32* p, F32* m, F32* v, const F32* g, F16* copy, long long n) { adamw<AdamW_f32_f16>(s, p, m, v, g, copy, n); }
struct SGD_f32_f16_momentum : Plan { using Float = F32; using Copy = F16; static constexpr bool kMomentum = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_f16_momentum(SGDStep s, F32* p, F32* b, const F32* g, F16* copy, long long n) { sgd<SGD_f32_f16_momentum>(s, p, b, g, copy, n); }
struct SGD_f32_f16_plain : Plan { using Float = F32; using Copy = F16; static constexpr bool kMomentum = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f32_f16_plain(SGDStep s, F32* p, F32* b, const F32* g, F16* copy, long long n) { sgd<SGD_f32_f16_plain>(s, p, b, g, copy, n); }
struct Only_f64 : Plan { using Float = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) scale_f64(F64* g, long long n, double by) { scale<Only_f64>(g, n, by); }
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) norm_f64(Norm* partials, const F64* g, long long n) { normChunks<Only_f64>(partials, g, n); }
struct AdamW_f64_f64 : Plan { using Float = F64; using Copy = F64; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) adamw_f64_f64(AdamWStep s, F64* p, F64* m, F64* v, const F64* g, F64* copy, long long n) { adamw<AdamW_f64_f64>(s, p, m, v, g, copy, n); }
struct SGD_f64_f64_momentum : Plan { using Float = F64; using Copy = F64; static constexpr bool kMomentum = true; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f64_f64_momentum(SGDStep s, F64* p, F64* b, const F64* g, F64* copy, long long n) { sgd<SGD_f64_f64_momentum>(s, p, b, g, copy, n); }
struct SGD_f64_f64_plain : Plan { using Float = F64; using Copy = F64; static constexpr bool kMomentum = false; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sgd_f64_f64_plain(SGDStep s, F64* p, F64* b, const F64* g, F64* copy, long long n) { sgd<SGD_f64_f64_plain>(s, p, b, g, copy, n); }
extern "C" __global__ void __launch_bounds__(kSumNorms) norm_total(Norm* total, const Norm* partials, long long n) { normTotal(total, partials, n); }

struct Fill_f64_normal : Plan { using Element = F64; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_f64(F64* to, Sampler s, long long first, long long n) { fillRandom<Fill_f64_normal>(to, s, first, n); }
struct Fill_f64_truncated_normal : Plan { using Element = F64; static constexpr Distribution kFamily = Distribution::kTruncatedNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_truncated_normal_f64(F64* to, Sampler s, long long first, long long n) { fillRandom<Fill_f64_truncated_normal>(to, s, first, n); }
struct Fill_f64_uniform : Plan { using Element = F64; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_f64(F64* to, Sampler s, long long first, long long n) { fillRandom<Fill_f64_uniform>(to, s, first, n); }
struct Fill_f32_normal : Plan { using Element = F32; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_f32(F32* to, Sampler s, long long first, long long n) { fillRandom<Fill_f32_normal>(to, s, first, n); }
struct Fill_f32_truncated_normal : Plan { using Element = F32; static constexpr Distribution kFamily = Distribution::kTruncatedNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_truncated_normal_f32(F32* to, Sampler s, long long first, long long n) { fillRandom<Fill_f32_truncated_normal>(to, s, first, n); }
struct Fill_f32_uniform : Plan { using Element = F32; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_f32(F32* to, Sampler s, long long first, long long n) { fillRandom<Fill_f32_uniform>(to, s, first, n); }
struct Fill_bf16_normal : Plan { using Element = BF16; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_bf16(BF16* to, Sampler s, long long first, long long n) { fillRandom<Fill_bf16_normal>(to, s, first, n); }
struct Fill_bf16_truncated_normal : Plan { using Element = BF16; static constexpr Distribution kFamily = Distribution::kTruncatedNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_truncated_normal_bf16(BF16* to, Sampler s, long long first, long long n) { fillRandom<Fill_bf16_truncated_normal>(to, s, first, n); }
struct Fill_bf16_uniform : Plan { using Element = BF16; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_bf16(BF16* to, Sampler s, long long first, long long n) { fillRandom<Fill_bf16_uniform>(to, s, first, n); }
struct Fill_f16_normal : Plan { using Element = F16; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_f16(F16* to, Sampler s, long long first, long long n) { fillRandom<Fill_f16_normal>(to, s, first, n); }
struct Fill_f16_uniform : Plan { using Element = F16; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_f16(F16* to, Sampler s, long long first, long long n) { fillRandom<Fill_f16_uniform>(to, s, first, n); }
struct Fill_f8e4m3_normal : Plan { using Element = F8E4M3; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_f8e4m3(F8E4M3* to, Sampler s, long long first, long long n) { fillRandom<Fill_f8e4m3_normal>(to, s, first, n); }
struct Fill_f8e4m3_uniform : Plan { using Element = F8E4M3; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_f8e4m3(F8E4M3* to, Sampler s, long long first, long long n) { fillRandom<Fill_f8e4m3_uniform>(to, s, first, n); }
struct Fill_f8e5m2_normal : Plan { using Element = F8E5M2; static constexpr Distribution kFamily = Distribution::kNormal; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_normal_f8e5m2(F8E5M2* to, Sampler s, long long first, long long n) { fillRandom<Fill_f8e5m2_normal>(to, s, first, n); }
struct Fill_f8e5m2_uniform : Plan { using Element = F8E5M2; static constexpr Distribution kFamily = Distribution::kUniform; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_uniform_f8e5m2(F8E5M2* to, Sampler s, long long first, long long n) { fillRandom<Fill_f8e5m2_uniform>(to, s, first, n); }
struct FillConstant_1 : Plan { static constexpr int kElementBytes = 1; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_constant_1(void* to, unsigned long long bits, long long n) { fillConstant<FillConstant_1>(to, bits, n); }
struct FillConstant_2 : Plan { static constexpr int kElementBytes = 2; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_constant_2(void* to, unsigned long long bits, long long n) { fillConstant<FillConstant_2>(to, bits, n); }
struct FillConstant_4 : Plan { static constexpr int kElementBytes = 4; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_constant_4(void* to, unsigned long long bits, long long n) { fillConstant<FillConstant_4>(to, bits, n); }
struct FillConstant_8 : Plan { static constexpr int kElementBytes = 8; };
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fill_constant_8(void* to, unsigned long long bits, long long n) { fillConstant<FillConstant_8>(to, bits, n); }

// The offsets of fields, in their order, and the bytes of the whole.
extern "C" __global__ void fields_of_sampler(long long* at) {
  const long long fields[] = {offsetof(Sampler, mean), offsetof(Sampler, std), offsetof(Sampler, cut), offsetof(Sampler, base),
                              offsetof(Sampler, width), offsetof(Sampler, lower), offsetof(Sampler, upper), offsetof(Sampler, stream.seed),
                              offsetof(Sampler, stream.owner), offsetof(Sampler, bounded), sizeof(Sampler)};
  memcpy(at, fields, sizeof fields);
}
extern "C" __global__ void fields_of_adamw(long long* at) {
  const long long fields[] = {offsetof(AdamWStep, gradScale), offsetof(AdamWStep, keep), offsetof(AdamWStep, gain1), offsetof(AdamWStep, keep1), offsetof(AdamWStep, beta2), offsetof(AdamWStep, gain2), offsetof(AdamWStep, stepSize), offsetof(AdamWStep, root2), offsetof(AdamWStep, eps), sizeof(AdamWStep)};
  memcpy(at, fields, sizeof fields);
}
extern "C" __global__ void fields_of_sgd(long long* at) {
  const long long fields[] = {offsetof(SGDStep, gradScale), offsetof(SGDStep, weightDecay), offsetof(SGDStep, momentum), offsetof(SGDStep, gain), offsetof(SGDStep, lr), offsetof(SGDStep, nesterov), sizeof(SGDStep)};
  memcpy(at, fields, sizeof fields);
}
extern "C" __global__ void fields_of_norm(long long* at) {
  const long long fields[] = {offsetof(Norm, sumSquares), offsetof(Norm, nonFinite), sizeof(Norm)};
  memcpy(at, fields, sizeof fields);
}

extern "C" __global__ void normal_quantile(double* z, double p) { *z = quantile(p); }

// Who writes last: the thread, its block, and the thread behind a barrier.
extern "C" __global__ void last_writer(long long* at) {
  at[0] = threadIdx.x;
  at[1] = blockIdx.x;
  __syncthreads();
  at[2] = threadIdx.x;
}
