/* libnvidia-ml.so.1 for tests, as far as trtforge asks it, by the declarations of NVIDIA's nvml.h.
 *
 * FAKE_NVML holds what it answers: "!N" makes nvmlInit fail with N; else GPUs, separated by ";":
 * "name,MiB,major.minor,uuid" with "-" for a GPU without memory of its own, "?" as name for one that is lost, and
 * "+uuid,MiB" behind it for each MIG slice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum
{
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    GPU_IS_LOST = 15
};

typedef struct
{
    char name[96], uuid[96];
    unsigned long long bytes;
    int major, minor, none, lost, slices, of;
} Gpu;

typedef struct
{
    unsigned long long total, free, used;
} Memory;

static Gpu gpus[32];
static int order[32], all, cards;

int nvmlInitWithFlags(unsigned flags)
{
    char const* said = getenv("FAKE_NVML");
    all = cards = 0;
    memset(gpus, 0, sizeof gpus);
    if (said == NULL || said[0] == '\0')
        return SUCCESS;
    if (said[0] == '!')
        return atoi(said + 1);
    char text[4096];
    snprintf(text, sizeof text, "%s", said);
    char *outer, *inner;
    for (char* one = strtok_r(text, ";", &outer); one != NULL; one = strtok_r(NULL, ";", &outer))
    {
        int card = all;
        order[cards++] = card;
        for (char* part = strtok_r(one, "+", &inner); part != NULL; part = strtok_r(NULL, "+", &inner))
        {
            Gpu* gpu = &gpus[all];
            char size[32] = "";
            if (all == card)
            {
                sscanf(part, "%95[^,],%31[^,],%d.%d,%95s", gpu->name, size, &gpu->major, &gpu->minor, gpu->uuid);
                gpu->lost = gpu->name[0] == '?';
            }
            else
            {
                sscanf(part, "%95[^,],%31s", gpu->uuid, size);
                snprintf(gpu->name, sizeof gpu->name, "%.60s MIG", gpus[card].name);
                gpus[card].slices++;
            }
            gpu->none = size[0] == '-';
            gpu->bytes = strtoull(size, NULL, 10) << 20;
            gpu->of = card;
            all++;
        }
    }
    return SUCCESS;
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned* count)
{
    *count = (unsigned)cards;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** gpu)
{
    *gpu = &gpus[order[index]];
    return (*gpu)->lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(char const* uuid, Gpu** gpu)
{
    for (int i = 0; i < all; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0)
        {
            *gpu = &gpus[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(Gpu* gpu, char* name, unsigned length)
{
    snprintf(name, length, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu* gpu, char* uuid, unsigned length)
{
    snprintf(uuid, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Gpu* gpu, int* major, int* minor)
{
    *major = gpu->major;
    *minor = gpu->minor;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Gpu* gpu, Memory* memory)
{
    if (gpu->none)
        return NOT_SUPPORTED;
    memory->total = gpu->bytes;
    memory->free = gpu->bytes / 4;
    memory->used = memory->total - memory->free;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Gpu* gpu, unsigned* current, unsigned* pending)
{
    *current = *pending = gpu->slices > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu* gpu, unsigned* count)
{
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu* gpu, unsigned index, Gpu** part)
{
    /* the first place is empty, as after a slice was destroyed */
    if (index == 0 || (int)index > gpu->slices)
        return NOT_FOUND;
    *part = gpu + index;
    return SUCCESS;
}
