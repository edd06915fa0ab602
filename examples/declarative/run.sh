#!/bin/sh
# Runs the pipeline once: what is there, then it ends. Further arguments go to `spark-pipelines run`.
set -eu
cd "$(dirname "$0")"
export MILLSTREAM_DECLARATIVE="${MILLSTREAM_DECLARATIVE:-/tmp/millstream-declarative}"
mkdir -p "$MILLSTREAM_DECLARATIVE"
PYSPARK_PYTHON="${PYSPARK_PYTHON:-$(command -v python3)}"
export PYSPARK_PYTHON
spec="$MILLSTREAM_DECLARATIVE/spark-pipeline.yml"
# The storage must be an absolute address, and files are looked for beside the specification.
sed -e "s|\${MILLSTREAM_DECLARATIVE}|$MILLSTREAM_DECLARATIVE|" spark-pipeline.yml > "$spec"
cp -R transformations "$MILLSTREAM_DECLARATIVE/"
exec spark-pipelines run --spec "$spec" --remote "${SPARK_REMOTE:-local[2]}" \
  --conf spark.sql.catalogImplementation=hive \
  --conf spark.sql.warehouse.dir="$MILLSTREAM_DECLARATIVE/warehouse" \
  --conf spark.hadoop.javax.jdo.option.ConnectionURL="jdbc:derby:;databaseName=$MILLSTREAM_DECLARATIVE/catalog;create=true" \
  --conf spark.ui.enabled=false "$@"
