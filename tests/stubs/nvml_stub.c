/* Stands for absent hardware: the part of libnvidia-ml.so.1 that the project asks for.
 *
 * The devices are described in the text file named by RLSCHED_STUB_NVML, which is read again at
 * each call, so that a test can change them while a program runs (see nvml.py, which writes it):
 *
 *     init=0                      what nvmlInit returns
 *     [gpu]                       a GPU; its MIG slices follow it
 *     uuid=GPU-...
 *     power=61.5                  a number in the unit of nvml.py, "unsupported" or "error N"
 *     pids=4711:2147483648,...    process id and bytes
 *     [slice]
 *     uuid=MIG-...
 *
 * A reading that is not described is not supported. A handle stays with its UUID: when that
 * leaves the file, the handle becomes invalid, as that of a destroyed slice does.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OK = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
};

#define API __attribute__((visibility("default")))
#define MAX_ENTRIES 64
#define MAX_KEYS 24
#define MAX_SLICES 7
#define MAX_LINE 512

struct entry {
    int parent; /* index of the GPU of a slice, else -1 */
    int count;
    struct { char key[32], value[MAX_LINE]; } pair[MAX_KEYS];
};

static __thread struct entry entries[MAX_ENTRIES];
static __thread int entry_count;
static __thread int init_result;

/* Handles are positions in this list, from 1 on. Threads may add the same UUID twice: harmless. */
static char handles[1024][96];
static int handle_count;

static void load(void) {
    char line[MAX_LINE];
    int gpu = -1;
    const char *path = getenv("RLSCHED_STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    entry_count = 0;
    init_result = file ? OK : DRIVER_NOT_LOADED;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (line[0] == '[' && entry_count < MAX_ENTRIES) {
            int slice = strcmp(line, "[slice]") == 0;
            entries[entry_count].parent = slice ? gpu : -1;
            entries[entry_count].count = 0;
            if (!slice)
                gpu = entry_count;
            entry_count++;
        } else if (value && entry_count == 0) {
            init_result = atoi(value + 1);
        } else if (value) {
            struct entry *entry = &entries[entry_count - 1];
            *value++ = 0;
            if (entry->count < MAX_KEYS) {
                snprintf(entry->pair[entry->count].key, 32, "%.31s", line);
                snprintf(entry->pair[entry->count++].value, MAX_LINE, "%s", value);
            }
        }
    }
    if (file)
        fclose(file);
}

static const char *get(const struct entry *entry, const char *key) {
    for (int i = 0; i < entry->count; i++)
        if (strcmp(entry->pair[i].key, key) == 0)
            return entry->pair[i].value;
    return NULL;
}

static int lost(const struct entry *entry) {
    const char *flag = get(entry, "lost");
    return (flag && atoi(flag)) || (entry->parent >= 0 && lost(&entries[entry->parent]));
}

static void *handle_of(const struct entry *entry) {
    const char *uuid = get(entry, "uuid");
    for (int i = 0; i < handle_count; i++)
        if (strcmp(handles[i], uuid) == 0)
            return (void *)(intptr_t)(i + 1);
    snprintf(handles[handle_count], sizeof handles[0], "%s", uuid);
    return (void *)(intptr_t)++handle_count;
}

static struct entry *find(void *handle) {
    intptr_t number = (intptr_t)handle;
    load();
    for (int i = 0; number > 0 && number <= handle_count && i < entry_count; i++)
        if (strcmp(get(&entries[i], "uuid"), handles[number - 1]) == 0)
            return &entries[i];
    return NULL;
}

static int text(void *handle, const char *key, const char **value) {
    struct entry *entry = find(handle);
    if (!entry)
        return INVALID_ARGUMENT;
    if (lost(entry))
        return GPU_IS_LOST;
    *value = get(entry, key);
    if (!*value || strcmp(*value, "unsupported") == 0)
        return NOT_SUPPORTED;
    return strncmp(*value, "error ", 6) == 0 ? atoi(*value + 6) : OK;
}

static int number(void *handle, const char *key, double *value) {
    const char *found;
    int result = text(handle, key, &found);
    if (result == OK)
        *value = atof(found);
    return result;
}

static int whole(void *handle, const char *key, double unit, unsigned *value) {
    double found;
    int result = number(handle, key, &found);
    if (result == OK)
        *value = (unsigned)(found * unit + 0.5);
    return result;
}

static int copy(void *handle, const char *key, char *buffer, unsigned size) {
    const char *found;
    int result = text(handle, key, &found);
    if (result == OK)
        snprintf(buffer, size, "%s", found);
    return result;
}

static int member(int parent, unsigned index, void **handle) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i].parent == parent && index-- == 0) {
            *handle = handle_of(&entries[i]);
            return OK;
        }
    return NOT_FOUND;
}

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    return init_result;
}

API int nvmlShutdown(void) { return OK; }

API int nvmlDeviceGetCount_v2(unsigned *count) {
    load();
    *count = 0;
    for (int i = 0; i < entry_count; i++)
        *count += entries[i].parent < 0;
    return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    load();
    return member(-1, index, handle);
}

API int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned size) {
    return copy(handle, "uuid", buffer, size);
}

API int nvmlDeviceGetName(void *handle, char *buffer, unsigned size) {
    return copy(handle, "name", buffer, size);
}

API int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    int result = whole(handle, "mig", 1, current);
    *pending = *current;
    return result;
}

API int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    *count = MAX_SLICES;
    return find(handle) ? OK : INVALID_ARGUMENT;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    struct entry *entry = find(handle);
    return entry ? member((int)(entry - entries), index, slice) : INVALID_ARGUMENT;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

static int memory(void *handle, double *total, double *used, double *reserved) {
    int result = number(handle, "memory_total", total);
    if (result == OK)
        result = number(handle, "memory_used", used);
    if (result == OK && number(handle, "memory_reserved", reserved) != OK)
        *reserved = 0;
    return result;
}

API int nvmlDeviceGetMemoryInfo(void *handle, struct memory *info) {
    double total, used, reserved;
    int result = memory(handle, &total, &used, &reserved);
    if (result == OK) {
        info->total = total;
        info->used = used + reserved;
        info->free = info->total - info->used;
    }
    return result;
}

#ifndef OLD_DRIVER
API int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *info) {
    double total, used, reserved;
    int result = memory(handle, &total, &used, &reserved);
    if (result == OK) {
        info->total = total;
        info->used = used;
        info->reserved = reserved;
        info->free = info->total - info->used - info->reserved;
    }
    return result;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, instance; };

API int nvmlDeviceGetComputeRunningProcesses_v3(
    void *handle, unsigned *count, struct process *processes) {
    const char *list;
    unsigned room = *count;
    int result = text(handle, "pids", &list);
    *count = 0;
    while (result == OK && *list) {
        if (processes && *count < room) {
            processes[*count].pid = strtoul(list, NULL, 10);
            processes[*count].memory = strtoull(strchr(list, ':') + 1, NULL, 10);
        }
        ++*count;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return result == OK && *count > room ? INSUFFICIENT_SIZE : result;
}
#endif

static int shared(const struct entry *a, const struct entry *b, const char *key) {
    const char *one = get(a, key), *other = get(b, key);
    return one && other && strcmp(one, other) == 0;
}

API int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    struct entry *a = find(one), *b = find(other);
    if (!a || !b)
        return INVALID_ARGUMENT;
    if (!get(a, "numa") || !get(b, "numa"))
        return NOT_SUPPORTED;
    *level = !shared(a, b, "numa") ? 50 : shared(a, b, "switch") ? 10 : 30;
    return OK;
}

API int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned kind, unsigned *status) {
    struct entry *a = find(one), *b = find(other);
    if (!a || !b || kind != 2)
        return INVALID_ARGUMENT;
    *status = shared(a, b, "nvlink") ? 0 : 5;
    return OK;
}

struct utilization { unsigned gpu, memory; };

API int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *rates) {
    rates->memory = 0;
    return whole(handle, "utilization", 1, &rates->gpu);
}

API int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    return whole(handle, "power", 1000, milliwatts);
}

API int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    return whole(handle, "power_limit", 1000, milliwatts);
}

API int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    double joules;
    int result = number(handle, "energy", &joules);
    if (result == OK)
        *millijoules = joules * 1000;
    return result;
}

API int nvmlDeviceGetClockInfo(void *handle, unsigned kind, unsigned *mhz) {
    return whole(handle, kind == 1 ? "sm_clock" : "memory_clock", 1, mhz);
}

API int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    return whole(handle, "temperature", 1, celsius);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    double bits;
    int result = number(handle, "throttle", &bits);
    if (result == OK)
        *reasons = bits;
    return result;
}
