// Streams and events. A stream's null handle is the context's default stream,
// which is ordered with the streams that are not CU_STREAM_NON_BLOCKING.
#include "call.h"

namespace gpu {
namespace {

std::shared_ptr<Queue> newQueue(Device& device, bool ordered) {
  auto queue = std::make_shared<Queue>();
  queue->device = &device;
  queue->ordered = ordered;
  state().queues.push_back(queue);
  return queue;
}

// Recording is the operation of cuEventRecord.
struct Recording : Operation {
  std::shared_ptr<Mark> mark;

  CUresult run() override { return CUDA_SUCCESS; }
  void ended() override { mark->when = Clock::now(); }
  std::string describe() const override { return "cuEventRecord"; }
};

// Waiting is the operation of cuStreamWaitEvent: it waits for the record that
// was the event's last at the call.
struct Waiting : Operation {
  Point point;

  bool ready() override { return point.past(); }
  void blockers(std::vector<Point>& points) override { points.push_back(point); }
  CUresult run() override { return CUDA_SUCCESS; }
  std::string describe() const override { return "cuStreamWaitEvent"; }
};

CUresult query(const Point& point) {
  ask(point);
  return point.past() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult create(Device& device, CUstream* stream, unsigned flags) {
  if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto queue = newQueue(device, flags != CU_STREAM_NON_BLOCKING);
  queue->index = device.streamsMade++;
  state().streams[queue.get()] = queue;
  *stream = reinterpret_cast<CUstream>(queue.get());
  return CUDA_SUCCESS;
}

constexpr int kHighestPriority = -5;

Point endOf(const std::shared_ptr<Queue>& queue) { return {queue, queue->enqueued}; }

CUresult synchronize(Lock& lock, const Point& point) {
  waitFor(lock, point);
  return point.queue == nullptr ? CUDA_SUCCESS : point.queue->device->sticky;
}

Point lastRecord(const Event& event) { return event.mark == nullptr ? Point{} : event.mark->point; }

CUresult record(Event& event, const std::shared_ptr<Queue>& queue) {
  if (event.device != queue->device) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  auto recording = std::make_unique<Recording>();
  event.mark = recording->mark = std::make_shared<Mark>();
  event.mark->point = enqueue(queue, std::move(recording));
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, const Event* start, const Event* end) {
  if (start == nullptr || end == nullptr || start->mark == nullptr || end->mark == nullptr || !start->timed || !end->timed) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->mark->point.past() || !end->mark->point.past()) {
    return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Queue> queueOf(CUstream stream, Device* device) {
  if (stream == nullptr) {
    if (device->defaultQueue == nullptr) {
      device->defaultQueue = newQueue(*device, false);
      device->defaultQueue->index = UINT64_MAX;
    }
    return device->defaultQueue;
  }
  const auto at = state().streams.find(stream);
  return at == state().streams.end() ? nullptr : at->second;
}

}  // namespace gpu

using namespace gpu;

extern "C" {

EMU_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return withContext("cuStreamCreate", [&](Device& device, Lock&) { return create(device, stream, flags); });
}

// A priority out of range is taken as the nearest; none changes the order of work.
EMU_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return withContext("cuStreamCreateWithPriority", [&](Device& device, Lock&) { return create(device, stream, flags); });
}

EMU_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return withContext("cuCtxGetStreamPriorityRange", [&](Device&, Lock&) {
    if (least != nullptr) {
      *least = 0;
    }
    if (greatest != nullptr) {
      *greatest = kHighestPriority;
    }
    return CUDA_SUCCESS;
  });
}

// Nothing is captured here: the mode is only kept.
EMU_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return withDriver("cuThreadExchangeStreamCaptureMode", [&](Lock&) {
    thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, own);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  return withContext("cuStreamDestroy_v2", [&](Device&, Lock&) {
    const auto at = state().streams.find(stream);
    if (at == state().streams.end()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    at->second->destroyed = true;  // its work is done all the same
    state().streams.erase(at);
    state().changed.notify_all();
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  return withContext("cuStreamSynchronize", [&](Device& device, Lock& lock) {
    const auto queue = queueOf(stream, &device);
    return queue == nullptr ? CUDA_ERROR_INVALID_HANDLE : synchronize(lock, endOf(queue));
  });
}

EMU_EXPORT CUresult cuStreamQuery(CUstream stream) {
  return withContext("cuStreamQuery", [&](Device& device, Lock&) {
    const auto queue = queueOf(stream, &device);
    return queue == nullptr ? CUDA_ERROR_INVALID_HANDLE : query(endOf(queue));
  });
}

EMU_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
  return withContext("cuStreamWaitEvent", [&](Device& device, Lock&) {
    const auto queue = queueOf(stream, &device);
    const Event* event = lookUp(state().events, handle);
    if (queue == nullptr || event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags > 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (event->mark != nullptr) {
      auto waiting = std::make_unique<Waiting>();
      waiting->point = event->mark->point;
      enqueue(queue, std::move(waiting));
    }
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuCtxSynchronize() {
  return withContext("cuCtxSynchronize", [&](Device& device, Lock& lock) {
    std::vector<Point> ends;
    for (const auto& queue : state().queues) {
      if (queue->device == &device) {
        ends.push_back(endOf(queue));
      }
    }
    for (const Point& end : ends) {
      waitFor(lock, end);
    }
    return device.sticky;
  });
}

EMU_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return withContext("cuEventCreate", [&](Device& device, Lock&) {
    const bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0, timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (event == nullptr || flags > 7 || (interprocess && timed)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_unique<Event>(Event{&device, timed, nullptr});
    *event = reinterpret_cast<CUevent>(made.get());
    state().events[made.get()] = std::move(made);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  return withContext("cuEventDestroy_v2", [&](Device&, Lock&) {
    return state().events.erase(event) == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return withContext("cuEventRecord", [&](Device& device, Lock&) {
    Event* event = lookUp(state().events, handle);
    const auto queue = queueOf(stream, &device);
    return event == nullptr || queue == nullptr ? CUDA_ERROR_INVALID_HANDLE : record(*event, queue);
  });
}

EMU_EXPORT CUresult cuEventQuery(CUevent handle) {
  return withContext("cuEventQuery", [&](Device&, Lock&) {
    const Event* event = lookUp(state().events, handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : query(lastRecord(*event));
  });
}

EMU_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  return withContext("cuEventSynchronize", [&](Device&, Lock& lock) {
    const Event* event = lookUp(state().events, handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : synchronize(lock, lastRecord(*event));
  });
}

EMU_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return withContext("cuEventElapsedTime_v2", [&](Device&, Lock&) {
    return elapsed(milliseconds, lookUp(state().events, start), lookUp(state().events, end));
  });
}

}  // extern "C"
