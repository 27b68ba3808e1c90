#include "thread_pool.h"

#include <unistd.h>

#include <stdexcept>
#include <string>

#include "fp_env.h"

namespace draftproof {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until `value` is no longer `old`: a short spin (work usually comes within microseconds),
// then sleep, so that a machine with other work isn't kept busy.
void await_change(std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

int checked_threads(int threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 .. 1024");
  return threads;
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads < 1 ? 1 : threads),
      process_(getpid()),
      // With more threads than cores a spinning one keeps the others from their work.
      spins_(static_cast<unsigned>(threads) > std::thread::hardware_concurrency() ? 0 : 2000) {
  try {
    for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {  // the system gives no more: take back those that run, then say so
    stop();
    throw std::runtime_error("the system can't start " + std::to_string(threads_) + " threads");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  if (getpid() != process_) {
    // A forked child has the objects of the parent's threads, but not the threads: waiting for one
    // would never end, and a std::thread that isn't joined must not be destroyed.
    new std::vector<std::thread>(std::move(workers_));
    return;
  }
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  job_ = &job;
  if (threads_ > 1) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  {
    const FpGuard guard;
    job(0);
  }
  barrier();
  job_ = nullptr;
}

void ThreadPool::barrier() {
  if (threads_ == 1) return;
  const uint32_t before = passed_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
  } else {
    await_change(passed_, before, spins_);
  }
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;;) {
    await_change(epoch_, seen, spins_);
    // One job at a time: epoch_ can't rise again before this thread came to the last barrier.
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    {
      const FpGuard guard;
      (*job_)(thread);
    }
    barrier();
  }
}

}  // namespace draftproof
