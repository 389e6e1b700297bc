#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pitstop {
namespace {

// How long a thread looks for work before it sleeps: bridges the gap between two ops of one step, and no more, because the front and
// other processes live on the same cores.
constexpr auto SPIN = std::chrono::microseconds(20);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(const Condition& condition) {
  auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

class Pool {
 public:
  void set_threads(int threads) {
    std::lock_guard region(region_);
    stop_workers();
    threads_ = threads < 1 ? 1 : threads;
  }

  int threads() { return threads_; }

  void run(int tasks, void (*body)(void*, int), void* context) {
    std::unique_lock region(region_, std::try_to_lock);
    // Another thread's region is in progress: the caller does its own work alone rather than wait.
    if (!region || threads_ == 1 || tasks < 2) {
      for (int task = 0; task < tasks; ++task) body(context, task);
      return;
    }
    if (workers_.empty()) start_workers();
    body_ = body, context_ = context, tasks_ = tasks;
    for (int share = 0; share < threads_; ++share) next_[share].task.store(first(share), std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    work_.store((uint64_t)++generation_ << 32 | (uint32_t)tasks);  // publishes the lines above
    if (sleepers_.load() > 0) {
      std::lock_guard lock(mutex_);
      wake_.notify_all();
    }
    while (claim(0)) {
    }
    if (spin_until([this] { return finished(); })) return;
    std::unique_lock lock(mutex_);
    waiting_.store(true);
    finish_.wait(lock, [this] { return finished(); });
    waiting_.store(false);
  }

 private:
  // Where the next task of a share is found; apart from the others', which other threads write.
  struct alignas(128) Share {
    std::atomic<int> task{0};
  };

  int first(int share) { return (int)((int64_t)tasks_ * share / threads_); }

  bool finished() { return done_.load() == tasks_; }
  bool has_work() { return (uint32_t)work_.load() != 0; }

  // Runs one task of the region in progress; false when none is left. The region cannot end, nor its description change, between the
  // claim and the count of what is done. The generation tells a region from the next, for whoever looked before and claims after.
  bool claim(int thread) {
    uint64_t work = work_.load();
    do {
      if ((uint32_t)work == 0) return false;
    } while (!work_.compare_exchange_weak(work, work - 1));
    body_(context_, take(thread));
    done_.fetch_add(1);
    if (waiting_.load()) {
      std::lock_guard lock(mutex_);
      finish_.notify_one();
    }
    return true;
  }

  // The next task of the thread's own share, or of another one: there is one for everybody who has claimed one.
  int take(int thread) {
    for (int share = thread;; share = (share + 1) % threads_) {
      std::atomic<int>& next = next_[share].task;
      if (next.load(std::memory_order_relaxed) >= first(share + 1)) continue;
      if (int task = next.fetch_add(1); task < first(share + 1)) return task;
    }
  }

  // Both sides write first and look then (all in one order): the caller publishes work and looks for sleepers, a worker counts itself
  // among them and looks for work; likewise for `done_` and `waiting_`. So no call is missed, and none is made while all are awake.
  void work(int thread) {
    for (;;) {
      while (claim(thread)) {
      }
      if (spin_until([this] { return has_work(); })) continue;
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [this] { return stopping_ || has_work(); });
      sleepers_.fetch_sub(1);
      if (stopping_) return;
    }
  }

  void start_workers() {
    next_ = std::vector<Share>(threads_);
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  void stop_workers() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  std::mutex region_;  // held by the one caller whose tasks are being run
  std::atomic<int> threads_{std::thread::hardware_concurrency() ? (int)std::thread::hardware_concurrency() : 1};
  std::vector<std::thread> workers_;
  uint32_t generation_ = 0;

  std::vector<Share> next_;  // of each thread

  // The region in progress: its number, and how many tasks nobody has claimed, in the low half.
  std::atomic<uint64_t> work_{0};
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int tasks_ = 0;
  std::atomic<int> done_{0};

  std::mutex mutex_;  // for those who sleep
  std::condition_variable wake_, finish_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> waiting_{false};
  bool stopping_ = false;
};

template <int SLOT>
float* thread_memory(size_t floats) {
  constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, alignment); }
  };
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local size_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;  // until there is another: it may not be had
    memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), alignment)));
    capacity = floats;
  }
  return memory.get();
}

// Never destroyed: its threads may still sleep in it when the process exits.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

}  // namespace

void set_threads(int threads) { pool().set_threads(threads); }
int threads() { return pool().threads(); }
void parallel(int tasks, void (*body)(void*, int), void* context) { pool().run(tasks, body, context); }

float* scratch(size_t floats) { return thread_memory<0>(floats); }
float* call_scratch(size_t floats) { return thread_memory<1>(floats); }

}  // namespace pitstop
