// BullMQ with a broker that speaks the Redis protocol, in memory. Settings: `concurrency`.
// Finished jobs are removed, which is the faster of its ways.
import * as adapting from './adapting.mjs'

const { Queue, Worker } = adapting.load('bullmq')
const { hostname, port } = new URL(adapting.url)
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null }
const NAME = 'bench'
const options = kind => ({ removeOnComplete: true, ...(kind === 'retry' ? { attempts: 5, backoff: 0 } : {}) })

async function withQueue (work) {
  const queue = new Queue(NAME, { connection })
  await queue.waitUntilReady()
  return work(queue, (number, sent, kind) => queue.add(kind, { number, sent }, options(kind)))
}

await adapting.main({
  prepare: async () => {},
  fill: (work, count) => withQueue(queue => adapting.fill(work, count, (kind, numbers) =>
    queue.addBulk(numbers.map(number => ({ name: kind, data: { number, sent: 0 }, opts: options(kind) }))))),
  enqueue: count => withQueue((_, send) => adapting.enqueue(count, send)),
  callers: count => withQueue((_, send) => adapting.callers(count, send)),
  pace: count => withQueue((_, send) => adapting.pace(count, send)),
  work: async () => {
    const handlers = {
      noop: async () => adapting.tally.ended(),
      latency: async job => adapting.tally.arrived(job.data.sent),
      retry: async job => adapting.tally.failTwice(job.data.number)
    }
    const worker = new Worker(NAME, job => handlers[job.name](job), {
      connection, concurrency: adapting.setting('concurrency', 1)
    })
    worker.on('error', error => console.error(error))
  }
})
