// SQLite's C interface with owners: a connection and prepared statements. Values are only ever bound,
// never pasted into SQL.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ljtrain::cnp::sqlite {

// What SQLite answered, with its primary result code.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code & 0xFF) {}
  int code() const { return code_; }
  // The file is no database, or a damaged one.
  bool is_damage() const { return code_ == SQLITE_CORRUPT || code_ == SQLITE_NOTADB; }

 private:
  int code_;
};

class Statement {
 public:
  // Both views must live until the statement is done.
  Statement& bind(int index, std::string_view text);
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, double value);
  Statement& bind_null(int index);
  template <typename T>
  Statement& bind(int index, const std::optional<T>& value) {
    return value.has_value() ? bind(index, *value) : bind_null(index);
  }

  // The next row; false at the end.
  bool step();
  // Runs to the end and is ready to be bound again.
  void run();
  void reset();

  bool is_null(int column) const;
  std::int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;
  std::string_view text_view(int column) const;  // until the next step()
  std::optional<std::int64_t> maybe_integer(int column) const;
  std::optional<double> maybe_real(int column) const;
  std::optional<std::string> maybe_text(int column) const;

 private:
  friend class Database;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  void check(int code) const;

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class Database {
 public:
  // `file` is made when it is missing; ":memory:" is one that lives as long as this object.
  explicit Database(const std::filesystem::path& file);

  // Several statements at once, without parameters: schema and pragmas.
  void execute(const char* sql);
  Statement prepare(std::string_view sql);
  std::int64_t integer(std::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

// BEGIN IMMEDIATE; rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database* database_;
  bool open_ = true;
};

}  // namespace ljtrain::cnp::sqlite
