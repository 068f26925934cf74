// SPDX-License-Identifier: Apache-2.0
/* A library for LD_PRELOAD on Linux x86-64: the process sees a processor with AVX2 and nothing newer.
 *
 * Libraries choose their kernels by the instruction `cpuid`. Linux can make it fault (arch_prctl, ARCH_CPUID);
 * the handler below then runs it, and clears the bits of AVX-512, AVX-VNNI and AMX in what it returns.
 * tests/plain_cpu.py compiles this file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID 0x1012

typedef int Sigaction(int, const struct sigaction *, struct sigaction *);

static struct sigaction handler_of_program; /* that for real faults, such as Python's faulthandler */
static int active;

static int set_sigaction(int number, const struct sigaction *new, struct sigaction *old) {
  return ((Sigaction *)dlsym(RTLD_NEXT, "sigaction"))(number, new, old);
}

static unsigned bits(const int *numbers, int count) {
  unsigned mask = 0;
  for (int i = 0; i < count; i++) mask |= 1u << numbers[i];
  return mask;
}
#define BITS(...) bits((int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void run_cpuid(greg_t *registers) {
  unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX];
  unsigned a = leaf, b, c = subleaf, d;
  syscall(SYS_arch_prctl, ARCH_CPUID, 1L);
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  syscall(SYS_arch_prctl, ARCH_CPUID, 0L);
  if (leaf == 7 && subleaf == 0) {
    b &= ~BITS(16, 17, 21, 26, 27, 28, 30, 31); /* AVX512 F, DQ, IFMA, PF, ER, CD, BW, VL */
    c &= ~BITS(1, 6, 8, 11, 12, 14);            /* AVX512 VBMI, VBMI2; GFNI; AVX512 VNNI, BITALG, VPOPCNTDQ */
    d &= ~BITS(2, 3, 8, 22, 23, 24, 25);        /* AVX512 4VNNIW, 4FMAPS, VP2INTERSECT; AMX and AVX512 FP16 */
  }
  if (leaf == 7 && subleaf == 1) a = b = c = d = 0; /* AVX-VNNI, AVX512 BF16, AMX FP16 and newer ones */
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2; /* the length of cpuid */
}

static void handle(int number, siginfo_t *information, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
  /* A fault of cpuid has no address; a jump to a wrong one has that of the instruction. */
  if (information->si_addr != instruction && instruction[0] == 0x0f && instruction[1] == 0xa2)
    run_cpuid(registers);
  else if (handler_of_program.sa_flags & SA_SIGINFO)
    handler_of_program.sa_sigaction(number, information, context);
  else if (handler_of_program.sa_handler != SIG_DFL && handler_of_program.sa_handler != SIG_IGN)
    handler_of_program.sa_handler(number);
  else
    set_sigaction(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* it faults again, and ends */
}

/* Keeps the handler above when the program sets one of its own. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
  if (number != SIGSEGV || !active) return set_sigaction(number, new, old);
  if (old) *old = handler_of_program;
  if (new) handler_of_program = *new;
  return 0;
}

__attribute__((constructor)) static void hide(void) {
  struct sigaction own = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  set_sigaction(SIGSEGV, &own, &handler_of_program);
  active = syscall(SYS_arch_prctl, ARCH_CPUID, 0L) == 0;
  if (!active) set_sigaction(SIGSEGV, &handler_of_program, NULL);
}
