// A small thread pool. Work is cut into fixed tasks, so results never depend on how many threads run them.
#pragma once

#include <cstddef>

namespace pitstop {

// Threads that share the work, the caller's included; at least 1. Joins the old ones.
void set_threads(int threads);
int threads();

// Runs body(context, task) for every task in [0, tasks), in any order, and returns when all are done. Never nested. Each thread begins
// with a share of tasks that follow each other, and helps the others then: what it reads comes mostly in order.
void parallel(int tasks, void (*body)(void* context, int task), void* context);

template <class Body>
void parallel(int tasks, const Body& body) {
  parallel(tasks, [](void* context, int task) { (*static_cast<const Body*>(context))(task); }, const_cast<Body*>(&body));
}

// At least `floats` floats that belong to the calling thread until its next call; uninitialised.
float* scratch(size_t floats);
// The same, apart from it: for what a driver prepares before its tasks, which use scratch.
float* call_scratch(size_t floats);

}  // namespace pitstop
