// A driver whose first GPU is the one that CUDA_VISIBLE_DEVICES names, as
// NVIDIA's: the double, which it links against, always begins with its first.
// A GPU's UUID is what the variable says of it.
#include <stdlib.h>
#include <string.h>

int cuDeviceGetUuid_v2(char *uuid, int device) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  strncpy(uuid, visible == NULL ? "" : visible, 16);
  return visible == NULL || device != 0;
}
