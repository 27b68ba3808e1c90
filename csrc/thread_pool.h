// A few threads that run one job together and meet at barriers inside it. Knows no work: jobs take
// their tiles from counters of their own, which is safe because no output depends on who computes
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace draftproof {

// threads, if it is 1 .. 1024; throws std::invalid_argument otherwise.
int checked_threads(int threads);

class ThreadPool {
 public:
  // `threads` >= 1, the calling thread included. Throws std::runtime_error if the system can't
  // start them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs job(thread) on every thread, the caller as thread 0; returns when all have finished. The
  // job must not throw.
  void run(const std::function<void(int)>& job);

  // For use inside a job, by all threads: nobody passes before everybody came.
  void barrier();

 private:
  void work(int thread);
  void stop();

  const int threads_;
  const int process_;  // the id of the one that the threads live in
  const int spins_;    // before a waiting thread sleeps
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // raised for every job, and to stop
  alignas(64) std::atomic<uint32_t> arrived_{0};  // at the current barrier
  alignas(64) std::atomic<uint32_t> passed_{0};   // barriers so far
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace draftproof
