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
  if (index == 0 && getenv("FAKE_SICK") && strcmp(getenv("FAKE_SICK"), "lost") == 0) return 15;
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

/* Health, for ljperf doctor. FAKE_SICK names what is wrong with GPU 0. */
static int sick(void* device, const char* what) {
  const char* value = getenv("FAKE_SICK");
  return value && strcmp(value, what) == 0 && device == (void*)entry(0);
}
int nvmlDeviceGetBrand(void* device, int* brand) {
  (void)device;
  *brand = 14;
  return 0;
}
int nvmlDeviceGetEccMode(void* device, int* now, int* pending) {
  (void)device;
  *now = *pending = 1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  *count = type == 1 && counter == 0 && sick(device, "ecc_errors") ? 2 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = *pending = 0;
  *failed = (unsigned)sick(device, "remap_failed");
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = sick(device, "throttle") ? 0x40 : 1;
  return 0;
}
int nvmlDeviceGetPersistenceMode(void* device, int* on) {
  *on = !sick(device, "not_persistent");
  return 0;
}
int nvmlDeviceGetMigMode(void* device, int* now, int* pending) {
  *now = *pending = sick(device, "mig");
  return 0;
}
int nvmlDeviceGetComputeMode(void* device, int* mode) {
  *mode = sick(device, "prohibited") ? 2 : 0;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, int* width) {
  *width = sick(device, "narrow") ? 8 : 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* device, int* width) {
  (void)device;
  *width = 16;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  *active = !(link == 5 && sick(device, "link_down"));
  return 0;
}
int nvmlDeviceGetP2PStatus(void* one, void* other, int index, int* status) {
  (void)other;
  (void)index;
  *status = sick(one, "apart");
  return 0;
}
