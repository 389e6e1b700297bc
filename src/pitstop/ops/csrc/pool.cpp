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

  int threads() {
    std::lock_guard region(region_);
    return threads_;
  }

  void run(int tasks, void (*body)(void*, int), void* context) {
    std::unique_lock region(region_, std::try_to_lock);
    // Another thread's region is in progress: the caller does its own work alone rather than wait.
    if (!region || threads_ == 1 || tasks < 2) {
      for (int task = 0; task < tasks; ++task) body(context, task);
      return;
    }
    if (workers_.empty()) start_workers();
    {
      std::lock_guard lock(mutex_);
      body_ = body, context_ = context, tasks_ = tasks;
      next_.store(0, std::memory_order_relaxed);
      open_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    claim(tasks, body, context);
    {
      // A worker that wakes only now finds the region closed; nobody waits for a late riser.
      std::lock_guard lock(mutex_);
      open_ = false;
    }
    if (spin_until([this] { return running_.load(std::memory_order_acquire) == 0; })) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_.load(std::memory_order_acquire) == 0; });
  }

 private:
  void claim(int tasks, void (*body)(void*, int), void* context) {
    for (int task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(context, task);
  }

  void work(uint64_t seen) {
    for (;;) {
      spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; });
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stopping_) return;
      if (!open_) continue;
      running_.fetch_add(1, std::memory_order_relaxed);
      auto body = body_;
      void* context = context_;
      int tasks = tasks_;
      lock.unlock();
      claim(tasks, body, context);
      lock.lock();
      if (running_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
    }
  }

  void start_workers() {
    uint64_t seen = generation_.load();
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, seen] { work(seen); });
  }

  void stop_workers() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  std::mutex region_;  // held by the one caller whose tasks are being run
  int threads_ = std::thread::hardware_concurrency() ? (int)std::thread::hardware_concurrency() : 1;
  std::vector<std::thread> workers_;

  std::mutex mutex_;  // guards what follows, but for the atomics' fast reads
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> next_{0}, running_{0};
  bool open_ = false, stopping_ = false;
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int tasks_ = 0;
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
