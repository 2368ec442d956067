// Prints where a rank has everything of model tiny in a job of 8 ranks: all that
// it allocates, then every bucket of every block, then the gradients that a
// backward pass makes of each block. It needs nothing but the generated header:
//
//	g++ -std=c++17 -I generated/tiny places.cc && ./a.out
#include "zz_layout.cuh"

#include <cstdio>

namespace model = shardgen::models::tiny;
using Rank = model::World<8>;

int main() {
  Rank::eachArena([](const model::ArenaPlace& a) { std::printf("arena\t%s\t%s\t%lld\n", a.role, a.dtype, a.bytes); });
  Rank::eachBucket([](const model::BucketPlace& b) {
    std::printf("bucket\t%s\t%lld\t%lld\t%lld\t%lld\t%lld\t%lld\t%lld\t%lld\t%lld\n", b.bucket, b.instance, b.shardElements, b.shard,
                b.master, b.moment1, b.moment2, b.gradientShard, b.slot, b.gatheredBytes);
  });
  Rank::eachGradient([](const model::GradientPlace& g) {
    std::printf("gradient\t%s\t%lld\t%s\t%lld\t%lld\n", g.block, g.instance, g.bucket, g.offset, g.bytes);
  });
  for (long long slot = 0; slot < model::maxLive; slot++) {
    std::printf("slot\t%lld\t%lld\t%lld\n", slot, Rank::slotStart(slot), Rank::slotBytes(slot));
  }
  for (long long buffer = 0; buffer < model::gradientSlots; buffer++) {
    std::printf("gradient buffer\t%lld\t%lld\t%lld\n", buffer, buffer * Rank::gradientBufferBytes, Rank::gradientBufferBytes);
  }
  std::printf("staging\t%lld\t%lld\n", Rank::wireFullBytes, Rank::wireShardBytes);
  std::printf("scratch\t%lld\t%lld\n", model::partialsStart, Rank::partialsBytes);
}
