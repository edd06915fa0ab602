// Writes and reads one record with kafkajs over a SASL listener.
// Arguments: bootstrap, topic, mechanism, user, password or token.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, mechanism, username, secret] = process.argv.slice(2)
const sasl =
  mechanism === 'OAUTHBEARER'
    ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: secret }) }
    : { mechanism: mechanism.toLowerCase(), username, password: secret }
const kafka = new Kafka({
  clientId: 'kafkajs',
  brokers: [bootstrap],
  sasl,
  ssl: false,
  logLevel: logLevel.NOTHING,
  retry: { retries: 2 },
})

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'from kafkajs' }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `group-${topic}` })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        console.log(message.value.toString())
        resolve()
      },
    })
  })
  await consumer.disconnect()
}

main().then(
  () => process.exit(0),
  (error) => {
    console.log(`error: ${error.message}`)
    process.exit(1)
  },
)
