'use strict'
// kafkajs behind the line protocol of programs/README.md.

const fs = require('node:fs')
const readline = require('node:readline')
const { ConfigResourceTypes, CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
const fzstd = require('fzstd')
const lz4 = require('lz4-napi')
const snappy = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')
// What its consumer takes a fetch apart with: without aborted records and markers.
const Batch = require('kafkajs/src/consumer/batch')

// kafkajs brings gzip only; these come as JavaScript, WebAssembly or prebuilt, so no compiler is needed.
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  // Kafka wants independent blocks, which lz4-napi writes (and the pure lz4js does not).
  compress: async encoder => lz4.compressFrameSync(encoder.buffer),
  decompress: async buffer => lz4.decompressFrameSync(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  // Frames of streaming writers do not tell their size, which zstd-wasm needs and fzstd does not.
  decompress: async buffer => Buffer.from(fzstd.decompress(buffer)),
})
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
// kafkajs makes one batch of one `send`, whatever its size.
const MAX_BATCH_BYTES = 500_000

class Unsupported extends Error {}

const emit = line => process.stdout.write(JSON.stringify(line) + '\n')
const encode = data => (data == null ? null : Buffer.from(data).toString('base64'))
const decode = text => (text == null ? null : Buffer.from(text, 'base64'))

const transactional = new Map()
const clients = new Map()
// The options of kafkajs for the request's `security`: PEM files, and a user of SASL.
function secured(security) {
  if (security == null) return {}
  const read = path => (path == null ? undefined : fs.readFileSync(path, 'utf-8'))
  const options = {}
  if (security.protocol.endsWith('SSL')) {
    // kafkajs gives the host's address as the server name, which Node refuses for an IP address.
    options.ssl = { ca: [read(security.ca)], cert: read(security.certificate), key: read(security.key), servername: 'localhost' }
  }
  if (security.mechanism != null) {
    const { username, password } = security
    options.sasl = { mechanism: security.mechanism.toLowerCase(), username, password }
  }
  return options
}

function kafka({ bootstrap, security }) {
  if (!clients.has(bootstrap)) {
    clients.set(
      bootstrap,
      new Kafka({
        clientId: 'interoperability',
        brokers: [bootstrap],
        ...secured(security),
        logLevel: logLevel.NOTHING,
        connectionTimeout: 10_000,
        retry: { initialRetryTime: 100, retries: 5 },
      })
    )
  }
  return clients.get(bootstrap)
}

function describe(error) {
  let cause = error
  while (cause.type == null && (cause.cause || cause.errors?.length)) cause = cause.cause ?? cause.errors[0]
  return { type: cause.type ?? cause.name, code: cause.code > 0 ? cause.code : null, message: String(cause.message) }
}

async function withAdmin(request, work) {
  const admin = kafka(request).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

/** kafkajs has no consumer without a group, so reading goes to the layer its consumer stands on. */
async function withCluster(request, work) {
  const client = kafka(request)
  const create = Object.getOwnPropertySymbols(client).find(each => each.description === 'private:Kafka:createCluster')
  const cluster = client[create]({ metadataMaxAge: 300_000, allowAutoTopicCreation: false, maxInFlightRequests: null })
  await cluster.connect()
  try {
    await cluster.addTargetTopic(request.topic)
    const [partition] = cluster.findTopicPartitionMetadata(request.topic).filter(
      each => each.partitionId === request.partition
    )
    return await work(await cluster.findBroker({ nodeId: partition.leader }))
  } finally {
    await cluster.disconnect()
  }
}

function toMessage(record) {
  const headers = {}
  for (const [name, value] of record.headers) {
    const content = decode(value)
    headers[name] = name in headers ? [headers[name], content].flat() : content
  }
  return {
    key: decode(record.key),
    value: decode(record.value),
    headers,
    partition: record.partition ?? undefined,
    timestamp: record.timestamp == null ? undefined : String(record.timestamp),
  }
}

function toRecord(message) {
  const headers = []
  for (const [name, values] of Object.entries(message.headers ?? {})) {
    for (const value of Array.isArray(values) ? values : [values]) headers.push([name, encode(value)])
  }
  return {
    offset: Number(message.offset),
    key: encode(message.key),
    value: encode(message.value),
    headers,
    timestamp: Number(message.timestamp),
  }
}

function* batches(records) {
  let batch = []
  let bytes = 0
  for (const record of records) {
    const size = record.value?.length ?? 0
    if (batch.length && (bytes + size > MAX_BATCH_BYTES || record.partition !== batch[0].partition)) {
      yield batch
      batch = []
      bytes = 0
    }
    batch.push(record)
    bytes += size
  }
  if (batch.length) yield batch
}

const operations = {
  async hello() {
    return {
      client: `kafkajs ${require('kafkajs/package.json').version}`,
      codecs: Object.keys(CODECS),
      lacks: { null_header: 'kafkajs fails on a header without a value (Buffer.byteLength(null))' },
    }
  },

  async create_topic(request) {
    await withAdmin(request, admin =>
      admin.createTopics({
        topics: [
          {
            topic: request.topic,
            numPartitions: request.partitions,
            replicationFactor: 1,
            configEntries: Object.entries(request.config).map(([name, value]) => ({ name, value })),
          },
        ],
      })
    )
  },

  async produce(request) {
    const producer = kafka(request).producer({ idempotent: request.idempotent })
    await producer.connect()
    const results = []
    try {
      for (const batch of batches(request.records)) {
        try {
          const [response] = await producer.send({
            topic: request.topic,
            messages: batch.map(toMessage),
            acks: request.acks === 'all' ? -1 : request.acks,
            compression: CODECS[request.codec],
          })
          batch.forEach((_, index) => {
            results.push({ offset: request.acks === 0 ? null : Number(response.baseOffset) + index })
          })
        } catch (error) {
          batch.forEach(() => results.push({ error: describe(error) }))
        }
      }
    } finally {
      await producer.disconnect()
    }
    return { results }
  },

  async stream(request) {
    const producer = kafka(request).producer({
      // With idempotence kafkajs allows one request at a time per partition.
      idempotent: false,
      maxInFlightRequests: 5,
      retry: { initialRetryTime: 100, retries: 50, maxRetryTime: 1000 },
    })
    await producer.connect()
    try {
      const offsets = []
      const sent = []
      for (let index = 0; index < request.count; index += 10) {
        const messages = []
        for (let i = index; i < Math.min(index + 10, request.count); i++) {
          messages.push({ value: `record-${String(i).padStart(6, '0')}`, partition: request.partition })
        }
        sent.push(
          producer.send({ topic: request.topic, messages, acks: -1 }).then(([response]) => {
            messages.forEach((_, i) => (offsets[index + i] = Number(response.baseOffset) + i))
            if (index <= request.announce_after && request.announce_after < index + 10) emit({ event: 'progress' })
          })
        )
        if (sent.length % 5 === 0) await Promise.all(sent)
      }
      await Promise.all(sent)
      return { offsets }
    } finally {
      await producer.disconnect()
    }
  },

  async consume(request) {
    const { topic, partition, start } = request
    const edges = await withAdmin(request, admin => admin.fetchTopicOffsets(topic))
    const edge = edges.find(each => each.partition === partition)
    let position
    if (typeof start === 'object') {
      const found = await withAdmin(request, admin => admin.fetchTopicOffsetsByTimestamp(topic, start.timestamp))
      position = Number(found.find(each => each.partition === partition).offset)
    } else {
      position = start === 'earliest' ? Number(edge.low) : start === 'latest' ? Number(edge.high) : start
    }
    const records = []
    await withCluster(request, async broker => {
      emit({ event: 'waiting' })
      const deadline = Date.now() + request.timeout_ms
      while (records.length < request.count && Date.now() < deadline) {
        const wanted = { partition, fetchOffset: String(position), maxBytes: 1 << 20 }
        let response
        try {
          response = await broker.fetch({
            maxWaitTime: Math.min(request.max_wait_ms, request.timeout_ms),
            minBytes: 1,
            maxBytes: 10 << 20,
            isolationLevel: request.isolation === 'read_committed' ? 1 : 0,
            topics: [{ topic, partitions: [wanted] }],
          })
        } catch (error) {
          if (error.type !== 'OFFSET_OUT_OF_RANGE' || request.reset === 'none') throw error
          position = Number(edge.low)
          continue
        }
        const batch = new Batch(topic, String(position), response.responses[0].partitions[0])
        for (const message of batch.messages) {
          if (records.length < request.count) records.push(toRecord(message))
        }
        if (batch.rawMessages.length) position = Number(batch.lastOffset()) + 1
      }
    })
    return { records }
  },

  async transact(request) {
    if (!transactional.has(request.producer)) {
      const made = kafka(request).producer({
        idempotent: true,
        maxInFlightRequests: 1,
        transactionalId: request.transactional_id,
      })
      await made.connect()
      transactional.set(request.producer, { made })
    }
    const client = transactional.get(request.producer)
    if (request.begin) client.transaction = await client.made.transaction()
    const { transaction } = client
    if (request.records.length) {
      await transaction.send({ topic: request.topic, messages: request.records.map(toMessage) })
    }
    if (request.offsets != null) {
      const [consumerGroupId, topic, partition, offset] = request.offsets
      const topics = [{ topic, partitions: [{ partition, offset: String(offset) }] }]
      await transaction.sendOffsets({ consumerGroupId, topics })
    }
    if (request.end === 'commit') await transaction.commit()
    if (request.end === 'abort') await transaction.abort()
  },

  async list_topics(request) {
    return { topics: await withAdmin(request, admin => admin.listTopics()) }
  },

  async describe_topic(request) {
    const { topics } = await withAdmin(request, admin => admin.fetchTopicMetadata({ topics: [request.topic] }))
    return {
      partitions: topics[0].partitions.map(each => ({
        id: each.partitionId,
        leader: each.leader,
        replicas: each.replicas,
      })),
    }
  },

  async describe_configs(request) {
    const { resources } = await withAdmin(request, admin =>
      admin.describeConfigs({
        includeSynonyms: false,
        resources: [{ type: ConfigResourceTypes.TOPIC, name: request.topic }],
      })
    )
    const entries = resources[0].configEntries
    return { configs: Object.fromEntries(entries.map(each => [each.configName, each.configValue])) }
  },

  async alter_config(request) {
    await withAdmin(request, admin =>
      admin.alterConfigs({
        validateOnly: false,
        resources: [
          {
            type: ConfigResourceTypes.TOPIC,
            name: request.topic,
            configEntries: [{ name: request.name, value: request.value }],
          },
        ],
      })
    )
  },

  async create_partitions(request) {
    const topicPartitions = [{ topic: request.topic, count: request.count }]
    await withAdmin(request, admin => admin.createPartitions({ topicPartitions }))
  },

  async delete_topic(request) {
    await withAdmin(request, admin => admin.deleteTopics({ topics: [request.topic] }))
  },

  async delete_records(request) {
    const { topic, partition, offset } = request
    return await withAdmin(request, async admin => {
      // kafkajs knows no leader of a topic until something else has asked for it.
      await admin.fetchTopicOffsets(topic)
      await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] })
      const edges = await admin.fetchTopicOffsets(topic)
      return { low_watermark: Number(edges.find(each => each.partition === partition).low) }
    })
  },

  async list_offsets(request) {
    const { topic, partition, at } = request
    if (at === 'max_timestamp') throw new Unsupported('kafkajs has no lookup of the greatest timestamp')
    return await withAdmin(request, async admin => {
      if (typeof at === 'number') {
        const found = await admin.fetchTopicOffsetsByTimestamp(topic, at)
        return { offset: Number(found.find(each => each.partition === partition).offset) }
      }
      const edge = (await admin.fetchTopicOffsets(topic)).find(each => each.partition === partition)
      return { offset: Number(at === 'earliest' ? edge.low : edge.high) }
    })
  },

  async describe_cluster(request) {
    const described = await withAdmin(request, admin => admin.describeCluster())
    return {
      cluster_id: described.clusterId,
      controller: described.controller,
      brokers: described.brokers.map(each => ({ id: each.nodeId, host: each.host, port: each.port })),
    }
  },
}

async function main() {
  await zstd.init()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    try {
      if (!(request.op in operations)) throw new Unsupported(`the client has no ${request.op}`)
      emit({ result: (await operations[request.op](request)) ?? {} })
    } catch (error) {
      emit(error instanceof Unsupported ? { unsupported: error.message } : { error: describe(error) })
    }
  }
  process.exit() // producers of transactions are kept, and would keep it alive
}

main()
