#!/bin/bash
# What a container of this image runs. Spark's own Kubernetes support starts the pods that it makes with one of the
# first two; `penstock-spark run job.yaml`, or any other command, runs as it stands.
#
#   driver SUBMIT-OPTIONS...   the driver of `spark-submit --deploy-mode cluster`, in client mode in its own pod
#   executor                   an executor; all that it has to know is in SPARK_* variables, which the driver has set
#   COMMAND ARGUMENTS...       that command
#
# tini is the first process: it passes signals on, and reaps the Python workers that a daemon leaves behind.
set -euo pipefail

fail() {
  echo "entrypoint: $*" >&2
  exit 64
}

# Spark unpacks files into the directory that it is started in; a root file system that is read-only has /tmp.
[ -w . ] || cd "$(mktemp -d /tmp/spark-work.XXXXXX)"

driver() {
  : "${SPARK_DRIVER_BIND_ADDRESS:?the pod of a driver has it from spark-submit}"
  command=("$SPARK_HOME/bin/spark-submit" --deploy-mode client
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@")
}

executor() {
  [ $# -eq 0 ] || fail "executor takes no arguments, but was given: $*"
  local name missing=()
  for name in DRIVER_URL EXECUTOR_ID EXECUTOR_CORES EXECUTOR_MEMORY APPLICATION_ID EXECUTOR_POD_IP EXECUTOR_POD_NAME \
    RESOURCE_PROFILE_ID; do
    name=SPARK_$name
    [ -n "${!name:-}" ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] || fail "not set: ${missing[*]}. Executors are started by a driver, never by hand"

  # Options of the virtual machine come one a variable, numbered from 0, as they may hold blanks.
  local options=() number=0
  name=SPARK_JAVA_OPT_0
  while [ -n "${!name+set}" ]; do
    options+=("${!name}")
    number=$((number + 1))
    name=SPARK_JAVA_OPT_$number
  done

  # The same order as on the driver: settings, what the job adds, Spark, Hadoop's settings.
  local classpath=${SPARK_CONF_DIR:-$SPARK_HOME/conf}
  classpath+=${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}
  classpath+=":$SPARK_HOME/jars/*"
  classpath+=${HADOOP_CONF_DIR:+:$HADOOP_CONF_DIR}
  classpath+=${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}

  command=("${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}"
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath"
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
    --driver-url "$SPARK_DRIVER_URL"
    --executor-id "$SPARK_EXECUTOR_ID"
    --cores "$SPARK_EXECUTOR_CORES"
    --app-id "$SPARK_APPLICATION_ID"
    --hostname "$SPARK_EXECUTOR_POD_IP"
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
    --podName "$SPARK_EXECUTOR_POD_NAME")
}

[ $# -gt 0 ] || fail "nothing to run: driver, executor, or a command such as penstock-spark run /etc/penstock-spark/job.yaml"
case $1 in
  driver | executor)
    : "${SPARK_HOME:?names where Spark is}"
    "$@"
    ;;
  *) command=("$@") ;;
esac
exec tini -s -- "${command[@]}"
