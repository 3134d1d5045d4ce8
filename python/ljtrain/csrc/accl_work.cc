#include "accl_work.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accl_engine.h"

namespace ljtrain {
namespace {

c10::TypePtr future_type(const TensorLists& outputs) {
  const c10::TypePtr tensors = c10::ListType::create(c10::TensorType::get());
  return outputs.size() > 1 ? c10::ListType::create(tensors) : tensors;
}

c10::IValue future_value(const TensorLists& outputs) {
  if (outputs.size() > 1) {
    return outputs;
  }
  return outputs.empty() ? std::vector<at::Tensor>() : outputs.front();
}

c10d::WorkResult result_of(const std::exception_ptr& failure) {
  return failure ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
}

}  // namespace

std::exception_ptr as_c10d_exception(const accl::Error& error, std::chrono::milliseconds timeout) {
  const std::string sentence = std::string("[accl] ") + error.what();
  try {
    switch (error.code()) {
      case accl::ErrorCode::kInvalidArgument:
        C10_THROW_ERROR(ValueError, sentence);
      case accl::ErrorCode::kTimeout:
        // The first words are Gloo's, which programs look for.
        C10_THROW_ERROR(DistBackendError, fmt::format("[accl] Timed out waiting {}ms: {}",
                                                      timeout.count(), error.what()));
      case accl::ErrorCode::kRemote:
        C10_THROW_ERROR(DistNetworkError, sentence);
      default:
        C10_THROW_ERROR(DistBackendError, sentence);
    }
  } catch (...) {
    return std::current_exception();
  }
}

// ---- all works ----

AcclWork::AcclWork(int rank, OperationInfo info)
    : c10d::Work(rank, info.kind, info.title,
                 info.title != nullptr ? std::make_optional(info.inputs) : std::nullopt),
      info_(std::move(info)) {}

std::vector<at::Tensor> AcclWork::result() {
  TORCH_CHECK(isCompleted(),
              "Work needs to be completed before calling result(). Should call wait() before "
              "result().");
  TORCH_CHECK(info_.outputs.size() <= 1,
              "work result does not support list of lists, use .getFuture() and value()");
  return info_.outputs.empty() ? std::vector<at::Tensor>() : info_.outputs.front();
}

c10::intrusive_ptr<c10::ivalue::Future> AcclWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) {
    return future_;
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(future_type(info_.outputs));
  if (settling_) {
    lock.unlock();
    if (exception_) {
      future_->setError(exception_);
    } else {
      future_->markCompleted(future_value(info_.outputs));
    }
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> AcclWork::getFutureResult() {
  std::unique_lock lock(mutex_);
  if (!result_future_) {
    result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    if (settling_) {
      lock.unlock();
      result_future_->markCompleted(static_cast<std::int64_t>(result_of(exception_)));
    }
  }
  return result_future_;
}

float AcclWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(ended_ - began_).count();
}

bool AcclWork::is_settled() const {
  return settled_.load(std::memory_order_acquire) || settler_.load() == std::this_thread::get_id();
}

void AcclWork::settle(std::exception_ptr failure) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<c10::ivalue::Future> result_future;
  {
    const std::lock_guard lock(mutex_);
    if (settling_) {
      return;
    }
    settling_ = true;
    exception_ = failure;
    settler_ = std::this_thread::get_id();
    future = future_;
    result_future = result_future_;
  }
  // As with Gloo, callbacks have run before wait() returns elsewhere.
  if (future) {
    if (failure) {
      future->setError(failure);
    } else {
      future->markCompleted(future_value(info_.outputs));
    }
  }
  if (result_future) {
    result_future->markCompleted(static_cast<std::int64_t>(result_of(failure)));
  }
  finish(std::move(failure));
  settled_.store(true, std::memory_order_release);
  settler_ = std::thread::id();
}

void AcclWork::throw_failure() const {
  if (const std::exception_ptr failure = exception()) {
    std::rethrow_exception(failure);
  }
}

// ---- collectives ----

CollectiveWork::CollectiveWork(int rank, OperationInfo info, std::shared_ptr<AcclEngine> engine,
                               Body body)
    : AcclWork(rank, std::move(info)), engine_(std::move(engine)), body_(std::move(body)) {}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (!is_settled()) {
    engine_->wait_for(*this, timeout);
  }
  throw_failure();
  return true;
}

void CollectiveWork::abort() {
  if (!is_settled()) {
    engine_->abort(fmt::format("Work.abort() on rank {}", rank_));
  }
}

std::exception_ptr CollectiveWork::run(accl::Communicator& communicator) {
  std::exception_ptr failure;
  began_ = std::chrono::steady_clock::now();
  try {
    body_(communicator, info_.timeout);
  } catch (const accl::Error& error) {
    failure = as_c10d_exception(error, info_.timeout);
  } catch (...) {
    failure = std::current_exception();
  }
  ended_ = std::chrono::steady_clock::now();
  body_ = nullptr;  // the copies that it made
  return failure;
}

// ---- messages ----

MessageWork::MessageWork(int rank, OperationInfo info, std::shared_ptr<AcclEngine> engine,
                         std::function<void()> finish)
    : AcclWork(rank, std::move(info)), engine_(std::move(engine)), finish_(std::move(finish)) {
  began_ = std::chrono::steady_clock::now();
}

bool MessageWork::isCompleted() {
  if (!is_settled() && engine_->is_mine()) {
    engine_->progress_messages();
    settle_if_done();
  }
  return is_settled();
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  if (!is_settled()) {
    engine_->wait_for(*this, timeout);
  }
  throw_failure();
  return true;
}

void MessageWork::abort() {
  settle(as_c10d_exception(accl::error(accl::ErrorCode::kAborted, "Work.abort() on rank {}", rank_),
                           info_.timeout));
}

int MessageWork::sourceRank() const {
  TORCH_CHECK(is_settled(), "the source of a message is known once it has been received");
  return handle_->source();
}

bool MessageWork::settle_if_done() {
  if (!handle_->is_done()) {
    return false;
  }
  if (!ended_once_.exchange(true)) {
    ended_ = std::chrono::steady_clock::now();
    std::exception_ptr failure;
    if (const auto error = handle_->failure()) {
      failure = as_c10d_exception(*error, info_.timeout);
    } else if (finish_) {
      try {
        finish_();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    settle(std::move(failure));
  }
  return true;
}

// ---- coalesced ----

CoalescedWork::CoalescedWork(int rank, OperationInfo info,
                             std::vector<c10::intrusive_ptr<AcclWork>> works)
    : AcclWork(rank, std::move(info)), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (auto failure = work->exception()) {
      return failure;
    }
  }
  return nullptr;
}

bool CoalescedWork::isSuccess() const { return exception() == nullptr; }

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) {
    work->wait(timeout);
  }
  settle(nullptr);
  return true;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) {
    work->abort();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(future_type(info_.outputs)));
  for (const auto& work : works_) {
    futures.push_back(work->getFuture());
  }
  return c10::collectAll(futures)->then(
      [outputs = info_.outputs](c10::ivalue::Future& all) {
        all.value();  // throws the first failure
        return future_value(outputs);
      },
      future_type(info_.outputs));
}

}  // namespace ljtrain
