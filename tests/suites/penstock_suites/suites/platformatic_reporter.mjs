// A reporter for `node --test`: one line of JSON for each finished test.
const RESULTS = { 'test:pass': 'passed', 'test:fail': 'failed' }

export default async function * report (events) {
  for await (const { type, data } of events) {
    if (type in RESULTS) {
      const { file, name, nesting, skip, todo, details } = data
      const error = details.error?.cause ?? details.error
      const result = skip !== undefined || todo !== undefined ? 'skipped' : RESULTS[type]
      const detail = String(error?.stack ?? error ?? '')
      yield JSON.stringify({ file, name, nesting, result, detail, ms: details.duration_ms }) + '\n'
    }
  }
}
