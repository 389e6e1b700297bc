// Two threads open regions at once, of every size, with tasks short and long, so that workers spin, sleep and rise late. Prints how many
// tasks ran another number of times than once.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <thread>

#include "pool.h"

using namespace pitstop;

int main() {
  std::atomic<long> wrong{0};
  auto work = [&](int rest) {
    for (int i = 0; i < 5000; ++i) {
      int tasks = i % 37, runs[37] = {};
      parallel(tasks, [&](int task) {
        ++runs[task];
        if ((i * 7 + task) % 97 == 0) usleep(60);
      });
      for (int task = 0; task < tasks; ++task) wrong += runs[task] != 1;
      if (i % rest == 0) usleep(100);
    }
  };
  for (int threads : {2, 4, 1, 3}) {
    set_threads(threads);
    std::thread first(work, 300), second(work, 500);
    first.join();
    second.join();
  }
  set_threads(1);
  std::printf("%ld\n", wrong.load());
}
