'use strict'
// kafkajs as a member of a group; see README.md.

const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, groupId, topic, text] = process.argv.slice(2)
const options = JSON.parse(text)
const tell = line => process.stdout.write(JSON.stringify(line) + '\n')

const kafka = new Kafka({
  clientId: 'member',
  brokers: bootstrap.split(','),
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 100 },
})
const consumer = kafka.consumer({ groupId, sessionTimeout: options.session_ms ?? 10_000, heartbeatInterval: 300 })

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => tell({ assigned: payload.memberAssignment[topic] ?? [] }))
consumer.on(consumer.events.REBALANCING, () => tell({ assigned: [] }))

async function main() {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, isRunning, isStale }) => {
      if (!isRunning() || isStale()) return
      for (const message of batch.messages) {
        tell({ record: [batch.partition, Number(message.offset), message.value.toString()] })
      }
      const offset = (BigInt(batch.lastOffset()) + 1n).toString()
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset }])
    },
  })
}

process.stdin.resume()
process.stdin.on('end', () => consumer.disconnect().then(() => process.exit(0)))
main().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
