/* NVML as tests need it: the devices named in FAKE_GPUS ("H100 80GB HBM3:80,..."), or an error from nvmlInit_v2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned long long total, free, used;
} memory_t;

static const char* entry(unsigned index) {
  const char* list = getenv("FAKE_GPUS");
  for (; list && index > 0; --index) {
    list = strchr(list, ',');
    list = list ? list + 1 : 0;
  }
  return list && *list ? list : 0;
}

int nvmlInit_v2(void) { return getenv("FAKE_NVML_ERROR") ? atoi(getenv("FAKE_NVML_ERROR")) : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  snprintf(text, size, "580.65.06");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  for (*count = 0; entry(*count); ++*count) {
  }
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)entry(index);
  return *device ? 0 : 2;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  snprintf(text, size, "%.*s", (int)strcspn(device, ":"), (const char*)device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, memory_t* memory) {
  memory->total = (unsigned long long)atoll(strchr(device, ':') + 1) << 30;
  return 0;
}
