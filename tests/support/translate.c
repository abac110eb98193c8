/*
 * Translates up to 1,000 lines of standard input by an exported SavedModel, through TensorFlow's C
 * API and without Python: translate SAVED_MODEL KERNELS TEXT TRANSLATION INDEX
 *
 * KERNELS is tensorflow-text's library with the SentencePiece operations. TEXT is the operation
 * that takes the lines, TRANSLATION:INDEX the output of serving_default; `saved_model_cli show`
 * tells them. tests/serving/test_saved_model.py has the command that builds this.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { MOST = 1000 };

static TF_Status *status;

static void check(const char *action) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "cannot %s: %s\n", action, TF_Message(status));
  exit(2);
}

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  status = TF_NewStatus();
  TF_LoadLibrary(argv[2], status);
  check("load the SentencePiece operations");
  const char *tags[] = {"serve"};
  TF_Graph *graph = TF_NewGraph();
  TF_Session *session = TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, argv[1], tags, 1,
                                                     graph, NULL, status);
  check("load the SavedModel");
  TF_Output text = {TF_GraphOperationByName(graph, argv[3]), 0};
  TF_Output translation = {TF_GraphOperationByName(graph, argv[4]), atoi(argv[5])};
  if (!text.oper || !translation.oper) return 2;

  TF_TString strings[MOST];
  int64_t count = 0;
  char *line = NULL;
  size_t capacity = 0;
  while (count < MOST && getline(&line, &capacity, stdin) >= 0) {
    TF_StringInit(&strings[count]);
    TF_StringCopy(&strings[count++], line, strcspn(line, "\n"));
  }
  TF_Tensor *lines = TF_AllocateTensor(TF_STRING, &count, 1, (size_t)count * sizeof *strings);
  memcpy(TF_TensorData(lines), strings, (size_t)count * sizeof *strings);
  TF_Tensor *found = NULL;
  TF_SessionRun(session, NULL, &text, &lines, 1, &translation, &found, 1, NULL, 0, NULL, status);
  check("translate");
  const TF_TString *translations = TF_TensorData(found);
  for (int64_t i = 0; i < TF_TensorElementCount(found); i++) {
    fwrite(TF_StringGetDataPointer(translations + i), 1, TF_StringGetSize(translations + i), stdout);
    putchar('\n');
  }
  return 0;
}
