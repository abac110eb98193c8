/*
 * Translates text by an exported SavedModel through TensorFlow's C API, without Python.
 *
 *     translate SAVED_MODEL KERNELS [FILE]
 *
 * SAVED_MODEL is the folder of one version, such as exports/quickstart/1. KERNELS is the
 * library of tensorflow-text with the SentencePiece operations, _sentencepiece_tokenizer.so. FILE,
 * or standard input, has one sentence per line. The program writes one line of output for each.
 * Every error is one line on standard error and exit status 2.
 *
 * Build it against the TensorFlow that pip installed. TF is the folder of the Python package
 * tensorflow:
 *
 *     cc -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -I"$TF/include" -o translate translate.c \
 *         -L"$TF" -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,-rpath,"$TF"
 */

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { BATCH_SIZE = 32, NAME_SIZE = 256 };

static const char SIGNATURE[] = "serving_default";

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("translate: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(2);
}

/* Dies of a failure, with the first line of what TensorFlow says. */
static void check(const TF_Status *status, const char *action) {
  if (TF_GetCode(status) == TF_OK) return;
  const char *message = TF_Message(status);
  die("cannot %s: %.*s", action, (int)strcspn(message, "\n"), message);
}

/*
 * A reader of protocol buffers, as much of it as finding a string in nested messages takes:
 * https://protobuf.dev/programming-guides/encoding
 */

typedef struct {
  const uint8_t *data;
  size_t size;
} Bytes;

static uint64_t read_varint(Bytes *rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && rest->size; shift += 7) {
    uint8_t byte = *rest->data++;
    rest->size--;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return value;
  }
  die("the SavedModel's definition is damaged");
  return 0;
}

static Bytes read_bytes(Bytes *rest, uint64_t size) {
  if (size > rest->size) die("the SavedModel's definition is damaged");
  Bytes bytes = {rest->data, (size_t)size};
  rest->data += size;
  rest->size -= (size_t)size;
  return bytes;
}

/* The next field `number` of a message that has a length; false after the last. */
static bool next_field(Bytes *message, uint32_t number, Bytes *field) {
  while (message->size) {
    uint64_t key = read_varint(message);
    switch (key & 7) {
      case 0: read_varint(message); break;
      case 1: read_bytes(message, 8); break;
      case 2:
        *field = read_bytes(message, read_varint(message));
        if (key >> 3 == number) return true;
        break;
      case 5: read_bytes(message, 4); break;
      default: die("the SavedModel's definition is damaged");
    }
  }
  return false;
}

static bool equals(Bytes bytes, const char *text) {
  return bytes.size == strlen(text) && !memcmp(bytes.data, text, bytes.size);
}

/* The value under a key of a map: field `number` of a message. */
static bool find_in_map(Bytes message, uint32_t number, const char *key, Bytes *value) {
  Bytes entry, found;
  while (next_field(&message, number, &entry)) {
    Bytes rest = entry;
    if (!next_field(&rest, 1, &found) || !equals(found, key)) continue;
    rest = entry;
    if (next_field(&rest, 2, value)) return true;
  }
  return false;
}

/* The place in the graph of an input (map 1) or an output (map 2) of the signature. */
static TF_Output find_tensor(TF_Graph *graph, Bytes signature, uint32_t map, const char *key) {
  Bytes info, name;
  if (!find_in_map(signature, map, key, &info) || !next_field(&info, 1, &name)) {
    die("the signature %s has no %s", SIGNATURE, key);
  }
  char operation[NAME_SIZE];
  if (name.size >= sizeof operation) die("the name of %s is too long", key);
  memcpy(operation, name.data, name.size);
  operation[name.size] = '\0';
  char *colon = strrchr(operation, ':');
  int index = colon ? atoi(colon + 1) : 0;
  if (colon) *colon = '\0';
  TF_Output output = {TF_GraphOperationByName(graph, operation), index};
  if (!output.oper) die("the graph has no operation %s", operation);
  return output;
}

/* A model that is loaded, and where its signature takes and gives text. */
typedef struct {
  TF_Graph *graph;
  TF_Session *session;
  TF_Output text, translation;
  TF_Status *status;
} Model;

static Model load_model(const char *path, const char *kernels) {
  Model model = {.graph = TF_NewGraph(), .status = TF_NewStatus()};
  TF_Library *library = TF_LoadLibrary(kernels, model.status);
  check(model.status, "load the SentencePiece operations");
  TF_DeleteLibraryHandle(library); /* the handle; what it has loaded stays */

  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Buffer *definition = TF_NewBuffer();
  const char *tags[] = {"serve"};
  model.session = TF_LoadSessionFromSavedModel(options, NULL, path, tags, 1, model.graph,
                                               definition, model.status);
  check(model.status, "load the SavedModel");
  TF_DeleteSessionOptions(options);

  Bytes signature, meta_graph = {definition->data, definition->length};
  if (!find_in_map(meta_graph, 5, SIGNATURE, &signature)) {
    die("%s has no signature %s", path, SIGNATURE);
  }
  model.text = find_tensor(model.graph, signature, 1, "text");
  model.translation = find_tensor(model.graph, signature, 2, "translation");
  TF_DeleteBuffer(definition);
  return model;
}

static void delete_model(Model *model) {
  TF_DeleteSession(model->session, model->status);
  TF_DeleteGraph(model->graph);
  TF_DeleteStatus(model->status);
}

static TF_Tensor *new_text_tensor(char **lines, int64_t count) {
  TF_Tensor *tensor = TF_AllocateTensor(TF_STRING, &count, 1, (size_t)count * sizeof(TF_TString));
  if (!tensor) die("out of memory");
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; i++) {
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], lines[i], strlen(lines[i]));
  }
  return tensor;
}

static void delete_text_tensor(TF_Tensor *tensor) {
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) TF_StringDealloc(&strings[i]);
  TF_DeleteTensor(tensor);
}

static void translate(Model *model, char **lines, int64_t count) {
  TF_Tensor *text = new_text_tensor(lines, count), *translation = NULL;
  TF_SessionRun(model->session, NULL, &model->text, &text, 1, &model->translation, &translation, 1,
                NULL, 0, NULL, model->status);
  check(model->status, "translate");
  if (TF_TensorType(translation) != TF_STRING || TF_TensorElementCount(translation) != count) {
    die("the model gave no translation for each sentence");
  }
  const TF_TString *strings = TF_TensorData(translation);
  for (int64_t i = 0; i < count; i++) {
    fwrite(TF_StringGetDataPointer(&strings[i]), 1, TF_StringGetSize(&strings[i]), stdout);
    fputc('\n', stdout);
  }
  fflush(stdout);
  delete_text_tensor(text);
  delete_text_tensor(translation);
}

/* Reads a line without its end; false at the end of the file. The caller frees it. */
static bool read_line(FILE *file, char **line) {
  size_t capacity = 0;
  *line = NULL;
  ssize_t size = getline(line, &capacity, file);
  if (size < 0) {
    free(*line);
    if (ferror(file)) die("cannot read: %s", strerror(errno));
    return false;
  }
  if (size && (*line)[size - 1] == '\n') (*line)[--size] = '\0';
  if (size && (*line)[size - 1] == '\r') (*line)[--size] = '\0';
  return true;
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) die("usage: translate SAVED_MODEL KERNELS [FILE]");
  FILE *file = argc == 4 ? fopen(argv[3], "r") : stdin;
  if (!file) die("cannot open %s: %s", argv[3], strerror(errno));
  Model model = load_model(argv[1], argv[2]);

  char *lines[BATCH_SIZE];
  int count;
  do {
    for (count = 0; count < BATCH_SIZE && read_line(file, &lines[count]); count++) continue;
    if (count) translate(&model, lines, count);
    for (int i = 0; i < count; i++) free(lines[i]);
  } while (count == BATCH_SIZE);

  if (ferror(stdout) || fclose(stdout)) die("cannot write: %s", strerror(errno));
  fclose(file);
  delete_model(&model);
  return 0;
}
