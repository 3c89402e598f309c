// kafkajs. See __init__.py for arguments and output.
const { Kafka, logLevel } = require('kafkajs')

const LIMIT_MS = 60000
const [bootstrap, topic, groupId] = process.argv.slice(2)
const acknowledged = new Set()
const received = new Set()
let stopping = false
let flushed = false

const write = (kind, what) => process.stdout.write(`${(Date.now() / 1000).toFixed(3)} ${kind} ${what}\n`)
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const isComplete = () => flushed && [...acknowledged].every((number) => received.has(number))

process.stdin.on('end', () => { stopping = true })
process.stdin.resume()

async function produce(kafka) {
  const producer = kafka.producer()
  await producer.connect()
  const sent = new Set()
  for (let number = 0; !stopping; number++) {
    const sending = producer
      .send({ topic, messages: [{ value: String(number) }] })
      .then(() => { acknowledged.add(number); write('acknowledged', number) })
      .catch((error) => write('error', error.name))
      .finally(() => sent.delete(sending))
    sent.add(sending)
    await pause(20)
  }
  await Promise.race([Promise.all([...sent]), pause(LIMIT_MS)])
  flushed = true
}

async function main() {
  const kafka = new Kafka({ brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })
  const consumer = kafka.consumer({ groupId })
  consumer.on('consumer.crash', (event) => write('error', event.payload.error.name))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ message }) => {
      const number = Number(message.value.toString())
      received.add(number)
      write('received', number)
    },
  })
  produce(kafka)
  let deadline = Infinity
  while (!isComplete() && Date.now() < deadline) {
    await pause(200)
    if (stopping && deadline === Infinity) deadline = Date.now() + LIMIT_MS
  }
  process.exit(0)
}

main()
