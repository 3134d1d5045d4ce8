#include "sqlite.h"

namespace ljtrain::cnp::sqlite {
namespace {

// Another writer holds the index for milliseconds at a time.
constexpr int kPatienceMs = 20'000;

}  // namespace

void Statement::check(int code) const {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
  throw Error(code, sqlite3_errmsg(sqlite3_db_handle(statement_.get())));
}

Statement& Statement::bind(int index, std::string_view text) {
  check(sqlite3_bind_text64(statement_.get(), index, text.data(), text.size(), SQLITE_STATIC,
                            SQLITE_UTF8));
  return *this;
}

Statement& Statement::bind(int index, std::int64_t value) {
  check(sqlite3_bind_int64(statement_.get(), index, value));
  return *this;
}

Statement& Statement::bind(int index, double value) {
  check(sqlite3_bind_double(statement_.get(), index, value));
  return *this;
}

Statement& Statement::bind_null(int index) {
  check(sqlite3_bind_null(statement_.get(), index));
  return *this;
}

bool Statement::step() {
  int code = sqlite3_step(statement_.get());
  check(code);
  return code == SQLITE_ROW;
}

void Statement::run() {
  while (step()) {
  }
  reset();
}

void Statement::reset() { sqlite3_reset(statement_.get()); }

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double Statement::real(int column) const { return sqlite3_column_double(statement_.get(), column); }

std::string_view Statement::text_view(int column) const {
  const void* bytes = sqlite3_column_text(statement_.get(), column);
  auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return bytes == nullptr ? std::string_view()
                          : std::string_view(static_cast<const char*>(bytes), size);
}

std::string Statement::text(int column) const { return std::string(text_view(column)); }

std::optional<std::int64_t> Statement::maybe_integer(int column) const {
  return is_null(column) ? std::nullopt : std::optional(integer(column));
}

std::optional<double> Statement::maybe_real(int column) const {
  return is_null(column) ? std::nullopt : std::optional(real(column));
}

std::optional<std::string> Statement::maybe_text(int column) const {
  return is_null(column) ? std::nullopt : std::optional(text(column));
}

Database::Database(const std::filesystem::path& file) {
  sqlite3* connection = nullptr;
  int code =
      sqlite3_open_v2(file.c_str(), &connection,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  connection_.reset(connection);  // there even when opening failed
  if (code != SQLITE_OK) {
    throw Error(code, connection == nullptr ? "out of memory" : sqlite3_errmsg(connection));
  }
  sqlite3_busy_timeout(connection, kPatienceMs);
}

void Database::execute(const char* sql) {
  if (int code = sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr);
      code != SQLITE_OK) {
    throw Error(code, sqlite3_errmsg(connection_.get()));
  }
}

Statement Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                &statement, nullptr);
  if (code != SQLITE_OK) throw Error(code, sqlite3_errmsg(connection_.get()));
  return Statement(statement);
}

std::int64_t Database::integer(std::string_view sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.integer(0) : 0;
}

Transaction::Transaction(Database& database) : database_(&database) {
  database_->execute("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_->execute("ROLLBACK");
  } catch (const Error&) {  // SQLite has rolled it back itself
  }
}

void Transaction::commit() {
  database_->execute("COMMIT");
  open_ = false;
}

}  // namespace ljtrain::cnp::sqlite
